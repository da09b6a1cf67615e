"""The models that an edge waits for when no node of them is there: what it was given to serve, and
what nodes of its platform announced, kept in a file over restarts.

A model leaves with its catalog entry, or with the deployment that the edge was sent: then it
requests it no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from skerry_regions.private_files import replace_file
from skerry_regions.wire.link import NodeLink
from skerry_regions.zones import GLOBAL

MAX_KNOWN = 1024
LOOK_SECONDS = 1.0

logger = logging.getLogger(__name__)


class SeenModel(msgspec.Struct, frozen=True):
    """A model that a node of a residency zone announced."""

    model: Annotated[str, msgspec.Meta(max_length=256)]
    zone: Annotated[str, msgspec.Meta(max_length=64)] = GLOBAL


class SeenFile(msgspec.Struct, kw_only=True):
    """Content of the file."""

    version: Literal[1] = 1
    seen: list[SeenModel] = []


class KnownModels:
    """Lives on one event loop. Edges of one home share the file: each adds what it saw."""

    def __init__(
        self,
        links: Callable[[], Iterable[NodeLink]],
        path: Path,
        offered: Iterable[str],
        told: Iterable[str] = (),
    ) -> None:
        """`offered` are catalog ids that the edge can serve: others are forgotten. `told` are those
        of them that it is there to serve, in whatever zone."""
        self._links = links
        self._path = path
        self._offered = frozenset(offered)
        self._told = frozenset(told)
        self._seen = {each for each in self._read() if each.model in self._offered}

    def knows(self, model: str, zone: str | None) -> bool:
        """Return whether there may be a node of the model again, in a zone if one is named."""
        if zone is not None:
            return SeenModel(model, zone) in self._seen
        return model in self._told or any(each.model == model for each in self._seen)

    def nodes(self) -> dict[tuple[str, str], int]:
        """Return how many nodes there are of each known model: `up`, or `away`."""
        found = {(model, "up"): 0 for model in self._told | {each.model for each in self._seen}}
        for link in self._links():
            for model in link.models:
                if model in self._offered:
                    key = model, "up" if link.is_up else "away"
                    found[key] = found.get(key, 0) + 1
        return found

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncGenerator[None]:
        """Look at what nodes announce until the block ends."""
        watching = asyncio.create_task(self._watch(), name="known models")
        try:
            yield
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        while True:
            fresh = self._announced() - self._seen
            if fresh and len(self._seen) < MAX_KNOWN:
                self._seen |= set(list(fresh)[: MAX_KNOWN - len(self._seen)])
                await asyncio.to_thread(self._write)
            await asyncio.sleep(LOOK_SECONDS)

    def _announced(self) -> set[SeenModel]:
        return {
            SeenModel(model, link.zone)
            for link in self._links()
            for model in link.models
            if model in self._offered
        }

    def _read(self) -> set[SeenModel]:
        """Read the file. One that cannot be read is as none: nodes announce their models again."""
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=SeenFile)
        except FileNotFoundError:
            return set()
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning("%s: %s", self._path, error)
            return set()
        return set(content.seen[:MAX_KNOWN])

    def _write(self) -> None:
        """Write the file; what other edges of the home saw meanwhile stays while there is room. A
        full disk costs the memory only."""

        def order(each: SeenModel) -> tuple[bool, str, str]:
            return each not in self._seen, each.model, each.zone

        seen = sorted(self._seen | self._read(), key=order)
        try:
            replace_file(self._path, msgspec.json.encode(SeenFile(seen=seen[:MAX_KNOWN])))
        except OSError as error:
            logger.warning("%s: %s", self._path, error)
