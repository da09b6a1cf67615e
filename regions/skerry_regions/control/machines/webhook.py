"""Requests machines of whoever has some, and says which are not needed: a webhook.

One message per region says all that is so there; it is sent when that changes, and every ten
minutes while something is lacking or idle. Messages are signed as Standard Webhooks has it
(standardwebhooks.com), whose libraries verify them; a retry has the id of its first attempt.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import msgspec

from skerry_regions.address import is_loopback
from skerry_regions.control.desired.views import rfc3339
from skerry_regions.control.planning.machine_needs import MachineNeeds
from skerry_regions.process.backoff import Backoff, RestartPolicy

LOOK_SECONDS = 1.0
SETTLE_SECONDS = 5.0  # that something is so, before it is sent
REPEAT_SECONDS = 600.0
IDLE_SECONDS = 600.0  # without a node, after which a host is not needed
CALL_SECONDS = 10.0
ATTEMPTS = 8  # of one message, over two minutes
AGAIN = RestartPolicy(first=1.0, most=60.0)
MAX_WAIT = 60.0  # seconds, of what a receiver wants us to wait
SECRET_PREFIX = "whsec_"
LEAST_SECRET, MOST_SECRET = 24, 512  # bytes
TEMPORARY = {408, 425, 429}  # and 5xx

logger = logging.getLogger(__name__)


class WebhookError(Exception):
    """It cannot be sent; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """The URL that messages go to, and the key that signs them."""

    url: str
    secret_file: Path  # read for each message
    idle_seconds: float = IDLE_SECONDS

    def check(self) -> None:
        """Raises WebhookError."""
        parts = urlsplit(self.url)
        is_here = parts.scheme == "http" and is_loopback(parts.hostname or "")
        if not parts.hostname or (parts.scheme != "https" and not is_here):
            raise WebhookError(f"{self.url}: not https://, nor http:// of this machine")
        self.secret()

    def secret(self) -> bytes:
        """Return the secret as it is now. Raises WebhookError."""
        try:
            with self.secret_file.open("rb") as file:
                text = file.read(4096).decode("ascii").strip()
            secret = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        except (OSError, UnicodeDecodeError, binascii.Error) as error:
            raise WebhookError(f"{self.secret_file}: {error}") from None
        if not LEAST_SECRET <= len(secret) <= MOST_SECRET:
            raise WebhookError(
                f"{self.secret_file}: a secret has {LEAST_SECRET} to {MOST_SECRET} bytes in "
                "base64: `openssl rand -base64 32` makes one"
            )
        return secret


NOTHING = MachineNeeds()


@dataclass(slots=True)
class SentNeeds:
    """What is so in a region, since when, and what was sent of it. Times are the clock's."""

    needs: MachineNeeds
    since: float
    sent: MachineNeeds = NOTHING  # as it arrived
    failed: MachineNeeds | None = None  # as it did not
    sent_at: float = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether something else is so than was sent, or the same for long."""
        if self.needs in (self.sent, self.failed):
            is_needed = bool(self.needs) or self.needs == self.failed
            return is_needed and now - self.sent_at >= REPEAT_SECONDS
        return now - self.since >= SETTLE_SECONDS


class MachineWebhook:
    """Lives on one event loop."""

    def __init__(
        self,
        options: WebhookOptions,
        needs: Callable[[float], dict[str, MachineNeeds]],
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        rng: Random | None = None,
    ) -> None:
        """`needs` returns by region what is so now, given the seconds after which a host is idle.
        `clock` is monotonic, `wall` Unix seconds."""
        self._options = options
        self._needs = needs
        self._clock = clock
        self._wall = wall
        self._rng = rng or Random()
        self._regions: dict[str, SentNeeds] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look and send, without an end."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in self._sending.values():
                task.cancel()

    def look(self) -> None:
        """Look once, and begin to send what is due; of a region one message after the other."""
        now, found = self._clock(), self._needs(self._options.idle_seconds)
        self._sending = {region: task for region, task in self._sending.items() if not task.done()}
        for region in found.keys() | self._regions.keys():
            needs = found.get(region, NOTHING)
            known = self._regions.setdefault(region, SentNeeds(needs, now))
            if known.needs != needs:
                known.needs, known.since = needs, now
            if region not in self._sending and known.is_due(now):
                self._sending[region] = asyncio.create_task(self._send(region, known))

    async def _send(self, region: str, known: SentNeeds) -> None:
        """Send what is so in a region; give up when that changes, or after some attempts."""
        needs, known.sent_at = known.needs, self._clock()
        id, backoff = f"msg_{secrets.token_hex(12)}", Backoff(AGAIN, self._rng)
        body = self._body(region, needs)
        why = "no answer of 2xx"
        for _ in range(ATTEMPTS):
            try:
                wait = await asyncio.to_thread(self._call, id, body)
            except WebhookError as error:
                why = str(error)
                break
            if wait is None:
                known.sent, known.failed = needs, None
                logger.info("machines of %s: %s", region, msgspec.json.encode(needs).decode())
                return
            await asyncio.sleep(max(wait, backoff.failed(0.0)))
            if known.needs != needs:  # which is sent once it has settled
                return
        known.failed = needs
        logger.warning("machines of %s are not requested: %s", region, why)

    def _body(self, region: str, needs: MachineNeeds) -> bytes:
        return msgspec.json.encode(
            {
                "type": "machines.needed",
                "timestamp": rfc3339(self._wall()),
                "data": {"region": region} | msgspec.to_builtins(needs),
            }
        )

    def _call(self, id: str, body: bytes) -> float | None:
        """Send a message once; None: it has arrived. Else seconds to wait at least. Blocks.

        Raises WebhookError where it will not arrive.
        """
        import httpx

        at = str(int(self._wall()))
        headers = {
            "content-type": "application/json",
            "webhook-id": id,
            "webhook-timestamp": at,
            "webhook-signature": signature(self._options.secret(), id, at, body),
        }
        try:
            with (
                httpx.Client(timeout=CALL_SECONDS, follow_redirects=False) as client,
                client.stream("POST", self._options.url, content=body, headers=headers) as reply,
            ):
                status, again = reply.status_code, reply.headers.get("retry-after", "")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            logger.info("the webhook does not answer: %s", error)
            return 0.0
        if 200 <= status < 300:
            return None
        if status < 500 and status not in TEMPORARY:
            raise WebhookError(f"the webhook refuses: HTTP status {status}")
        return min(float(again), MAX_WAIT) if again.isascii() and again.isdecimal() else 0.0


def signature(secret: bytes, id: str, at: str, body: bytes) -> str:
    """Return the header `webhook-signature` of a message."""
    digest = hmac.digest(secret, f"{id}.{at}.".encode() + body, "sha256")
    return f"v1,{base64.b64encode(digest).decode()}"
