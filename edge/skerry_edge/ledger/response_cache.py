"""Answers that are given again instead of being computed again, as AI Gateway does.

    cf-aig-cache-ttl: 3600        keep the answer for so many seconds, and take one that is kept
    cf-aig-skip-cache: true       neither
    cf-aig-cache-key: my-key      in place of what was sent, within the tenant and the model;
                                  alone it keeps the answer for five minutes

What is kept is the region's part of an answer: token ids and log-probabilities, step by step. It is
written again by the dialect of the request, so a stream comes as a stream with the same text in the
same steps, under an id and a time of its own.

Who requests it says that any answer will do, a sampled one too. By the operator's default only
answers are kept that would come out the same again: at temperature 0, or with a seed that the
caller gave. Gateways (`cf-aig-gateway-id`) have their answers apart.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from skerry.errors import InvalidInput, Unavailable
from skerry_edge.database import DatabaseThread, make_room
from skerry_edge.whole_numbers import whole_number
from skerry_regions.wire.protocol import Done, Tokens

TTL_HEADER = "cf-aig-cache-ttl"
SKIP_HEADER = "cf-aig-skip-cache"
KEY_HEADER = "cf-aig-cache-key"
STATUS_HEADER = "cf-aig-cache-status"
GATEWAY_HEADER = "cf-aig-gateway-id"
OLD_NAMES = {TTL_HEADER: "cf-cache-ttl", SKIP_HEADER: "cf-skip-cache"}
HEADERS = frozenset((TTL_HEADER, SKIP_HEADER, KEY_HEADER, *OLD_NAMES.values()))  # of requests

MAX_TTL_SECONDS = 30 * 24 * 3600  # upstream's month
KEY_TTL_SECONDS = 300  # upstream's, of a key of the caller's own without a time
MAX_KEY_LENGTH = 1024  # characters of a caller's own key
KEY_BYTES = 32

MAX_BYTES = 256 << 20  # of all tenants
MAX_TENANT_BYTES = 64 << 20
MAX_ENTRY_BYTES = 4 << 20
MAX_ENTRIES = 65_536

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY, tenant TEXT NOT NULL, key BLOB NOT NULL, expires REAL NOT NULL,
    size INTEGER NOT NULL, document BLOB NOT NULL, UNIQUE (tenant, key)
);
CREATE INDEX IF NOT EXISTS answers_expires ON answers (expires);
CREATE INDEX IF NOT EXISTS answers_size ON answers (tenant, number, size);
"""

logger = logging.getLogger(__name__)

Event = Tokens | Done


class StoredAnswer(Struct, array_like=True):
    """What a region said: the events of each choice, prompts in order; or the vectors of texts."""

    streams: list[list[Event]] = []
    vectors: list[bytes] = []


encode_answer = msgspec.msgpack.Encoder().encode
decode_answer = msgspec.msgpack.Decoder(StoredAnswer).decode


class CachePolicy(Struct, frozen=True):
    """What a request wants of the cache."""

    ttl_seconds: int
    key: str | None = None  # the caller's own
    takes_any: bool = False  # also an answer that would not come out the same again
    gateway: str = ""


def policy_of(headers: Mapping[str, str], default_ttl: int | None = None) -> CachePolicy | None:
    """Return what the headers want of the cache; None: nothing. `default_ttl` is the operator's,
    None for none.

    Raises `InvalidInput` for a header that is out of range.
    """
    skip = (_given(headers, SKIP_HEADER) or "false").strip().lower()
    if skip not in ("true", "false"):
        raise InvalidInput(f"Bad input: {SKIP_HEADER} must be true or false", param=SKIP_HEADER)
    given, key = _given(headers, TTL_HEADER), headers.get(KEY_HEADER)
    ttl = _ttl(given, KEY_TTL_SECONDS if default_ttl is None and key is not None else default_ttl)
    if key is not None and not 0 < len(key) <= MAX_KEY_LENGTH:
        raise InvalidInput(
            f"Bad input: {KEY_HEADER} must have 1 to {MAX_KEY_LENGTH} characters", param=KEY_HEADER
        )
    if skip == "true" or not ttl:
        return None
    takes_any = given is not None or key is not None
    return CachePolicy(ttl, key, takes_any, headers.get(GATEWAY_HEADER, ""))


def _given(headers: Mapping[str, str], name: str) -> str | None:
    """Return a header by the name of today, else by the older one."""
    return headers.get(name, headers.get(OLD_NAMES[name]))


def _ttl(given: str | None, default: int | None) -> int | None:
    if given is None:
        return default
    seconds = whole_number(given.strip(), 0, MAX_TTL_SECONDS)
    if seconds is None:
        raise InvalidInput(
            f"Bad input: {TTL_HEADER} must be whole seconds, 0 (do not cache) to {MAX_TTL_SECONDS}",
            param=TTL_HEADER,
        )
    return seconds


def key_of(*parts: object) -> bytes:
    """Return the name of whatever these parts say: plain data and wire structs."""
    return blake2b(encode_answer(parts), digest_size=KEY_BYTES, person=b"skerry answer").digest()


class AnswerCache(Protocol):
    """Answers by tenant and key; none finds another's. Every driver passes one conformance suite.

    A cache that cannot be used finds nothing and keeps nothing: no request fails for it.
    """

    async def find(self, tenant: str, key: bytes) -> StoredAnswer | None:
        """Return the answer under a key, unless it expired or had to go."""
        ...

    def keep(self, tenant: str, ttl_by_key: Mapping[bytes, int], answer: StoredAnswer) -> None:
        """Keep an answer under each key for so many seconds, unless it is too large. Returns at
        once."""
        ...

    def close(self) -> None:
        """Write what is to be kept. Idempotent."""
        ...


class ResponseCache:
    """See `AnswerCache`: a file, which the edges of one home share."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_BYTES,
        max_tenant_bytes: int = MAX_TENANT_BYTES,
        max_entries: int = MAX_ENTRIES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds: what is stored outlives the process."""
        self._database = DatabaseThread(path, (_SCHEMA,), name="response-cache")
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._max_entries = max_entries
        self._clock = clock

    async def find(self, tenant: str, key: bytes) -> StoredAnswer | None:
        values = (tenant, key, self._clock())
        reading = self._database.read(lambda database: _find(database, values))
        try:
            document = await asyncio.wrap_future(reading)
            return None if document is None else decode_answer(document)
        except (Unavailable, msgspec.DecodeError) as error:
            logger.warning("the response cache cannot be read: %s", error)
            return None

    def keep(self, tenant: str, ttl_by_key: Mapping[bytes, int], answer: StoredAnswer) -> None:
        now = self._clock()
        expires = {key: now + ttl for key, ttl in ttl_by_key.items()}
        self._database.write(
            lambda database: self._keep(database, tenant, expires, answer, now)
        ).add_done_callback(_warn)

    def close(self) -> None:
        self._database.close()

    def _keep(
        self,
        database: sqlite3.Connection,
        tenant: str,
        expires: Mapping[bytes, float],
        answer: StoredAnswer,
        now: float,
    ) -> None:
        document = encode_answer(answer)
        if len(document) > min(MAX_ENTRY_BYTES, self._max_tenant_bytes, self._max_bytes):
            return
        database.execute("DELETE FROM answers WHERE expires <= ?", (now,))
        database.executemany(
            "INSERT OR REPLACE INTO answers (tenant, key, expires, size, document)"
            " VALUES (?, ?, ?, ?, ?)",
            [(tenant, key, end, len(document), document) for key, end in expires.items()],
        )
        bounds = self._max_tenant_bytes, self._max_bytes, self._max_entries
        make_room(database, "answers", tenant, *bounds)


def _find(database: sqlite3.Connection, values: tuple[str, bytes, float]) -> bytes | None:
    row = database.execute(
        "SELECT document FROM answers WHERE tenant = ? AND key = ? AND expires > ?", values
    ).fetchone()
    return None if row is None else bytes(row[0])


def _warn(writing: Future[None]) -> None:
    if (error := writing.exception()) is not None:
        logger.warning("an answer could not be kept: %s", error)
