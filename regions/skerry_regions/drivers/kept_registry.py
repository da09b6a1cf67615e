"""A registry whose last word outlives the process: an edge that starts while it is away knows where
its nodes are, as one that runs on does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from skerry_regions.private_files import replace_file
from skerry_regions.registry import LEASE_SECONDS, Member, Registry, RegistryUnavailable

KEEP_SECONDS = 10.0  # between two writes, of a platform whose members come and go all the time
MAX_KEPT = 16_384

logger = logging.getLogger(__name__)


class KeptFile(msgspec.Struct, kw_only=True):
    """Content of the file."""

    version: Literal[1] = 1
    members: list[Member] = []


class KeptRegistry:
    """Reads and writes another registry, and keeps its members in a file. For one thread at a
    time."""

    def __init__(
        self, registry: Registry, path: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock` gives seconds. Processes of one home share the file, by turns."""
        self._registry = registry
        self._path = path
        self._clock = clock
        self._kept: list[Member] | None = None  # None: nothing was read by this process
        self._next_write = clock()

    def announce(self, member: Member, lease_seconds: float = LEASE_SECONDS) -> int:
        return self._registry.announce(member, lease_seconds)

    def withdraw(self, member_id: str, incarnation: int) -> None:
        self._registry.withdraw(member_id, incarnation)

    def members(self) -> list[Member]:
        """Return the registry's; of one that has been away since this process started those that
        were kept. Raises RegistryUnavailable when it is away otherwise."""
        try:
            members = self._registry.members()
        except RegistryUnavailable as error:
            kept = self._read() if self._kept is None else []
            if not kept:
                raise
            logger.warning("the registry is away, what was kept of it stands: %s", error)
            self._kept = kept
            return kept
        self._keep(members)
        return members

    def close(self) -> None:
        self._registry.close()

    def _keep(self, members: Sequence[Member]) -> None:
        """Write down who can be reached where, if that is new; a full disk costs the file only."""
        found = [
            replace(each, streams=0, queue_seconds=0.0, held={}, ttft={}, itl={})
            for each in members[:MAX_KEPT]
            if each.state in ("ready", "draining")
        ]
        if found == self._kept or self._clock() < self._next_write:
            return
        self._kept = found
        self._next_write = self._clock() + KEEP_SECONDS
        try:
            replace_file(self._path, msgspec.json.encode(KeptFile(members=found)))
        except OSError as error:
            logger.warning("%s: %s", self._path, error)

    def _read(self) -> list[Member]:
        """Return what the file has; one that cannot be read has nothing."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=KeptFile).members[:MAX_KEPT]
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.warning("%s: %s", self._path, error)
            return []
