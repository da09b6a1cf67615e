"""Follows a zone that is written down in a control plane.

What was read last is kept in a file: while the control plane is away the zone stays as it was, also
over a restart of the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from skerry_regions.private_files import replace_file
from skerry_regions.topology.loading import TopologyError, decode_topology
from skerry_regions.topology.spec import Topology

LOOK_SECONDS = 1.0
TIMEOUT = 10.0  # seconds
MAX_BYTES = 64 << 20
OK, NOT_MODIFIED = 200, 304

Adopt = Callable[[Topology], Awaitable[None]]
"""Serves a zone from now on. Raises `ZoneAway` where there is none to be made of it, and then
nothing has changed."""

logger = logging.getLogger(__name__)


class ZoneAway(Exception):
    """The control plane does not say what is in the zone; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneSource:
    """A zone of a control plane, and the file that keeps its last contents."""

    url: str  # of the control plane
    token: str
    zone: str
    kept: Path

    def last(self) -> Topology | None:
        """Return it as it was kept. None when there is nothing that can be used."""
        try:
            return decode_topology(self.kept.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, TopologyError) as error:
            logger.warning("%s cannot be used: %s", self.kept, error)
            return None

    async def follow(
        self,
        adopt: Adopt,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Give `adopt` the zone now and whenever it has changed, until cancelled."""
        etag, trouble = "", ""
        headers = {"authorization": f"Bearer {self.token}"}
        async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT) as client:
            while True:
                try:
                    etag = await self._look(client, etag, adopt)
                    trouble = ""
                except ZoneAway as error:
                    if str(error) != trouble:  # once, not each second
                        trouble = str(error)
                        logger.warning("zone %s stays as it is: %s", self.zone, trouble)
                await sleep(LOOK_SECONDS)

    async def _look(self, client: httpx.AsyncClient, etag: str, adopt: Adopt) -> str:
        """Return the etag of what is adopted now."""
        url = f"{self.url}/control/v1/dns_zones/{self.zone}/contents"
        document = bytearray()
        try:
            async with (
                asyncio.timeout(TIMEOUT),
                client.stream("GET", url, headers={"if-none-match": etag}) as response,
            ):
                if response.status_code == NOT_MODIFIED:
                    return etag
                async for piece in response.aiter_bytes():
                    document += piece
                    if len(document) > MAX_BYTES:
                        raise ZoneAway(f"it has more than {MAX_BYTES} bytes")
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise ZoneAway(f"{url}: {str(error) or type(error).__name__}") from None
        if response.status_code != OK:
            raise ZoneAway(f"{url} answers {response.status_code}")
        try:
            await adopt(decode_topology(bytes(document)))
        except TopologyError as error:
            raise ZoneAway(str(error)) from None
        self._keep(bytes(document))
        return str(response.headers.get("etag", ""))

    def _keep(self, document: bytes) -> None:
        try:
            self.kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.kept, document)
        except OSError as error:
            logger.warning("cannot write %s: %s", self.kept, error.strerror)
