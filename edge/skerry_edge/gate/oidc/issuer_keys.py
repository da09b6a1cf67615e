"""The keys of one issuer, followed as it replaces them, without a call to it for each token.

known key         used; looked for again behind the request once `refresh_seconds` are over
unknown key       looked for at once, at most every `RETRY_SECONDS`, whoever calls
no answer         the keys of before count for `keep_seconds`
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager

import httpx
import msgspec
from msgspec import Struct

from skerry.errors import Unavailable
from skerry_edge.gate.oidc.issuers import Issuer, is_trustworthy
from skerry_edge.gate.oidc.verification import IssuerKey, JoseHeader, chosen, parse_keys
from skerry_regions.process.cancellation import cancel_tasks

DISCOVERY = "/.well-known/openid-configuration"
MAX_ANSWER_BYTES = 256 * 1024
FETCH_SECONDS = 5.0
RETRY_SECONDS = 10.0  # between two tries
HEADERS = {"accept": "application/json", "accept-encoding": "identity"}

Fetch = Callable[[Issuer], bytes]

logger = logging.getLogger(__name__)


class KeysError(Exception):
    """The keys cannot be had; the message says why."""


class Discovery(Struct, frozen=True):
    """What is read of a discovery document (OpenID Connect Discovery 1.0)."""

    issuer: str
    jwks_uri: str = ""
    authorization_endpoint: str = ""
    token_endpoint: str = ""


class TokenAnswer(Struct, frozen=True):
    """What is read of a token endpoint's answer."""

    id_token: str


class IssuerKeys:
    """Lives on one event loop. `clock` gives seconds."""

    def __init__(
        self, issuer: Issuer, fetch: Fetch, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._issuer = issuer
        self._fetch = fetch
        self._clock = clock
        self._keys: tuple[IssuerKey, ...] = ()
        self._raw = b""
        self._fetched_at: float | None = None
        self._tried_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self.generation = 0  # another one, another set of keys

    def are_usable(self) -> bool:
        """Return whether there are keys that count; looks for others when it is time."""
        if self._fetched_at is None:
            return False
        age = self._clock() - self._fetched_at
        if age > self._issuer.refresh_seconds:
            self._look()
        return age <= max(self._issuer.keep_seconds, self._issuer.refresh_seconds)

    async def find(self, header: JoseHeader) -> IssuerKey | None:
        """Return the key that a header names, None when the issuer has none of that name.

        Raises Unavailable when its keys are not known now.
        """
        if self.are_usable() and (key := chosen(self._keys, header)) is not None:
            return key
        if (looking := self._look()) is not None:
            await asyncio.shield(looking)
        if not self.are_usable():
            raise Unavailable(
                "Logins cannot be checked now: the issuer's keys are not known.",
                retry_after=RETRY_SECONDS,
            )
        return chosen(self._keys, header)

    async def close(self) -> None:
        """End a look that is on its way."""
        await cancel_tasks(self._fetching)

    def _look(self) -> asyncio.Task[None] | None:
        """Return the look that is on its way, a new one, or None when it is too early for that."""
        if self._fetching is None or self._fetching.done():
            if self._clock() - self._tried_at < RETRY_SECONDS:
                return None
            self._tried_at = self._clock()
            self._fetching = asyncio.create_task(self._followed(), name="issuer keys")
        return self._fetching

    async def _followed(self) -> None:
        try:
            raw, keys = await asyncio.to_thread(self._read)
        except (KeysError, ValueError) as error:
            name = self._issuer.name
            logger.warning("keys of %s cannot be read, those of before stay: %s", name, error)
            return
        self._fetched_at = self._clock()
        if raw != self._raw:
            self._keys, self._raw = keys, raw
            self.generation += 1
            logger.info("the issuer %s has %d keys", self._issuer.name, len(keys))

    def _read(self) -> tuple[bytes, tuple[IssuerKey, ...]]:
        raw = self._fetch(self._issuer)
        return raw, parse_keys(raw)


def fetch_keys(issuer: Issuer) -> bytes:
    """Return an issuer's JWKS. Blocks for `FETCH_SECONDS` at most. Raises KeysError."""
    with _calling(issuer) as (http, deadline):
        url = issuer.jwks_url
        if url is None:
            url = _trusted(issuer, _discovered(issuer, http, deadline).jwks_uri, "its keys are")
        return _answer(http.stream("GET", url, headers=HEADERS), deadline)


def fetch_endpoints(issuer: Issuer) -> Discovery:
    """Return where one logs in at an issuer. Blocks as `fetch_keys`. Raises KeysError."""
    with _calling(issuer) as (http, deadline):
        found = _discovered(issuer, http, deadline)
        _trusted(issuer, found.authorization_endpoint, "one logs in")
        _trusted(issuer, found.token_endpoint, "its tokens are")
        return found


def fetch_token(issuer: Issuer, url: str, form: dict[str, str]) -> str:
    """Return the ID token that a token endpoint gives for a form. Blocks as `fetch_keys`.

    Raises KeysError.
    """
    with _calling(issuer) as (http, deadline):
        answer = _answer(http.stream("POST", url, headers=HEADERS, data=form), deadline)
        return msgspec.json.decode(answer, type=TokenAnswer).id_token


@contextmanager
def _calling(issuer: Issuer) -> Generator[tuple[httpx.Client, float]]:
    """Give a client for an issuer, and the monotonic time when a call is over."""
    is_sealed = issuer.issuer.startswith("https:")  # else it is loopback: past no proxy
    try:
        with httpx.Client(trust_env=is_sealed, timeout=FETCH_SECONDS) as http:
            yield http, time.monotonic() + FETCH_SECONDS
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise KeysError(str(error) or type(error).__name__) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KeysError(f"its answer cannot be read: {error}") from None


def _discovered(issuer: Issuer, http: httpx.Client, deadline: float) -> Discovery:
    url = issuer.issuer.rstrip("/") + DISCOVERY
    raw = _answer(http.stream("GET", url, headers=HEADERS), deadline)
    found = msgspec.json.decode(raw, type=Discovery)
    if found.issuer != issuer.issuer:
        raise KeysError(f"its discovery document is of {found.issuer[:200]!r}")
    return found


def _trusted(issuer: Issuer, url: str, what: str) -> str:
    is_sealed = issuer.issuer.startswith("https:")
    if not is_trustworthy(url) or (is_sealed and not url.startswith("https:")):
        raise KeysError(f"{what} at {url[:200]!r}: that needs https")
    return url


def _answer(calling: AbstractContextManager[httpx.Response], deadline: float) -> bytes:
    """Return a document of bounded length, from there and nowhere else."""
    with calling as answer:
        if answer.status_code != 200:
            raise KeysError(f"{answer.url} answers with HTTP status {answer.status_code}")
        found = bytearray()
        for piece in answer.iter_raw():
            found += piece
            if len(found) > MAX_ANSWER_BYTES:
                raise KeysError(f"{answer.url} answers with more than {MAX_ANSWER_BYTES} bytes")
            if time.monotonic() > deadline:
                raise KeysError(f"{answer.url} answers too slowly")
        return bytes(found)
