"""Reading what an edge reports of its region: `GET /regions`, with a token of the scope `steer`."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

import httpx
import msgspec

from skerry_regions.geo.region_report import RegionReport

SECONDS = 2.0
MAX_BYTES = 1 << 20

logger = logging.getLogger(__name__)


class NoReport(Exception):
    """The edge gives no report; the message says why."""


class EdgeReports:
    """Those of one edge. It is called at an address of its own, by a name that clients use: its
    certificate must be good for that name, since the token is sent to it."""

    def __init__(self, url: str, host: str, token: Callable[[], str], tls: ssl.SSLContext) -> None:
        """`token` is called on a thread, until it gives one, and again when the edge refuses it."""
        self._url = url
        self._host = host
        self._find_token = token
        self._token = ""
        self._tls = tls
        self._trouble = ""

    async def __call__(self, *, clients: bool = False) -> RegionReport | None:
        """Return the report, or None where there is none; with round trips to `clients`, if they
        are wanted. What is wrong is logged once."""
        try:
            async with asyncio.timeout(SECONDS):
                report, trouble = await self._ask(clients), ""
        except (NoReport, httpx.HTTPError, TimeoutError) as error:
            report, trouble = None, str(error) or type(error).__name__
        if trouble and trouble != self._trouble:
            logger.warning("the edge at %s reports nothing: %s", self._url, trouble)
        self._trouble = trouble
        return report

    async def _ask(self, clients: bool) -> RegionReport:
        if not self._token:
            self._token = await asyncio.to_thread(self._find_token)
        if not self._token:
            raise NoReport("SKERRY_API_TOKEN has no token (`skerry tokens create --scope steer`)")
        headers = {"authorization": f"Bearer {self._token}", "host": self._host}
        body = bytearray()
        async with (
            httpx.AsyncClient(timeout=SECONDS, trust_env=False, verify=self._tls) as client,
            client.stream(
                "GET",
                f"{self._url}/regions{'?clients=1' if clients else ''}",
                headers=headers,
                extensions={"sni_hostname": self._host},
            ) as response,
        ):
            if not response.is_success:
                self._token = ""  # there may be another one by now
                raise NoReport(f"it answers {response.status_code}; the scope `steer` is needed")
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_BYTES:
                    raise NoReport("its report is too long")
        try:
            return msgspec.json.decode(body, type=RegionReport)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoReport(f"its report cannot be read: {error}") from None
