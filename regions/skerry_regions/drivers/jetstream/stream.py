"""A stream as a table of messages by key, of which writes have one effect, however often sent.

    last(key) ──▶ value and sequence ──▶ write(new value, expected=sequence) ──▶ its sequence
                                            └── another was faster: `RevisionConflict`, with theirs

Reads do not decide: a server that was the leader a moment ago may answer one. The write's
expectation does, which the servers check as they store it.
"""

from __future__ import annotations

import asyncio
import base64
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.answers import ErrorCode, JetStreamError, StreamFull, answered
from skerry_regions.drivers.jetstream.connection import CALL_SECONDS, REQUEST_SECONDS, JetStream
from skerry_regions.drivers.jetstream.specs import StreamSpec

WRITE_SECONDS = 20.0  # two elections of a leader
PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.02, 0.5  # between two attempts
ID_HEADER = "Nats-Msg-Id"
EXPECTED_HEADER = "Nats-Expected-Last-Subject-Sequence"
TTL_HEADER = "Nats-TTL"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of a stream."""

    key: str
    data: bytes
    sequence: int
    id: str = ""  # of the write


@dataclass(frozen=True, slots=True)
class Write:
    """A message that is to be stored. Given once more, it has no second effect."""

    key: str
    data: bytes
    expected: int | None = None  # sequence of the key's last message; 0: there is none
    ttl_seconds: int | None = None
    id: str = field(default_factory=lambda: secrets.token_hex(12))

    @property
    def headers(self) -> dict[str, str]:
        headers = {ID_HEADER: self.id}
        if self.expected is not None:
            headers[EXPECTED_HEADER] = str(self.expected)
        if self.ttl_seconds is not None:
            headers[TTL_HEADER] = f"{self.ttl_seconds}s"
        return headers


class RevisionConflict(Exception):
    """A write is not the last of its key: `found` is, or nothing.

    It was not stored; or its answer was lost, and others have written since: a record that several
    write has to say itself whose changes are in it. (A cluster knows ids of the last two minutes, a
    single server looks at the expectation first.)
    """

    def __init__(self, key: str, found: Stored | None) -> None:
        super().__init__(f"{key} was written by another")
        self.found = found


@dataclass(frozen=True, slots=True)
class StreamState:
    """How full a stream is."""

    num_messages: int
    num_bytes: int
    max_bytes: int
    num_consumers: int
    last_sequence: int
    created: str  # when the stream was made, by which it differs from another of its name


class KeyedStream:
    """One declared stream of a zone."""

    def __init__(self, jetstream: JetStream, spec: StreamSpec, zone: str) -> None:
        self.jetstream = jetstream
        self.name = spec.name(zone)
        self._is_immutable = spec.is_immutable

    def subject(self, key: str) -> str:
        return f"{self.name}.{key}"

    async def last(self, key: str) -> Stored | None:
        """Return the last message of a key as its leader has it. Raises `Unavailable`."""
        return await self._found({"last_by_subj": self.subject(key)})

    async def next(self, sequence: int) -> Stored | None:
        """Return the first message from a sequence on as its leader has it: none before it is still
        to come. Raises `Unavailable`."""
        return await self._found({"seq": sequence, "next_by_subj": self.subject(">")})

    async def _found(self, chosen: dict[str, str | int]) -> Stored | None:
        try:
            answer = await self.jetstream.call(
                f"STREAM.MSG.GET.{self.name}", chosen, seconds=REQUEST_SECONDS
            )
        except JetStreamError as error:
            if error.code == ErrorCode.NO_MESSAGE:
                return None
            raise Unavailable(f"{self.name}: {error}.") from error
        message = answer["message"]
        headers = _headers(message.get("hdrs"))
        return Stored(
            message["subject"].removeprefix(self.subject("")),
            base64.b64decode(message.get("data", "")),
            message["seq"],
            headers.get(ID_HEADER, ""),
        )

    async def get(self, key: str) -> Stored | None:
        """Return the one value that a key ever has, from any replica, or its leader where that one
        has it not yet. Raises `Unavailable`."""
        if self._is_immutable:
            answer = await self.jetstream.request(
                f"$JS.API.DIRECT.GET.{self.name}.{self.subject(key)}"
            )
            headers = answer.headers or {}
            if "Status" not in headers:
                sequence = int(headers["Nats-Sequence"])
                return Stored(key, answer.data, sequence, headers.get(ID_HEADER, ""))
        return await self.last(key)

    async def write(self, write: Write, *, seconds: float = WRITE_SECONDS) -> int:
        """Store a message, and return its sequence.

        The same bytes are sent under the same expectation until the outcome is known. Raises
        `RevisionConflict`, `StreamFull`, or `Unavailable` after so many seconds: it may be stored
        all the same, and the same `Write` may be given once more.
        """
        return await until_known(lambda: self._write_once(write), seconds)

    async def _write_once(self, write: Write) -> int:
        answer = await self.jetstream.request(
            self.subject(write.key), write.data, headers=write.headers
        )
        try:
            sequence: int = answered(answer)["seq"]
            return sequence
        except JetStreamError as error:
            match error.code:
                case ErrorCode.WRONG_LAST_SEQUENCE | ErrorCode.WRONG_LAST_SEQUENCE_NOW:
                    # Servers that have started since know no ids: then what is there says it.
                    found = await self.last(write.key)
                    if found is not None and found.id == write.id:
                        return found.sequence
                    if error.code == ErrorCode.WRONG_LAST_SEQUENCE_NOW and _as_expected(
                        found, write
                    ):
                        raise Unavailable(f"{self.name}: {error}.") from error
                    raise RevisionConflict(write.key, found) from error
                case ErrorCode.STORE_FAILED:
                    raise StreamFull(f"{self.name} is full: {error}.") from error
                case _:
                    raise Unavailable(f"{self.name}: {error}.") from error

    async def delete(self, key: str, *, keep: int = 0, through: int = 0) -> None:
        """Remove all messages of a key; `a.>` is all keys below. But for the newest `keep`, or
        those after the sequence `through`. Followers receive none of it. Raises `Unavailable`."""
        chosen: dict[str, str | int] = {"filter": self.subject(key)}
        chosen |= {"keep": keep} if keep else {}
        chosen |= {"seq": through + 1} if through else {}
        await self._call("STREAM.PURGE", chosen)

    async def count(self, keys: str = ">") -> int:
        """Return how many keys there are, such as `a.*`. Raises `Unavailable`."""
        return len(await self.keys(keys))

    async def keys(self, keys: str = ">") -> list[str]:
        """Return the keys that there are, such as `a.*`, as the leader has them. Raises
        `Unavailable`."""
        found: list[str] = []
        while True:  # 100,000 come at once
            info = await self._info({"subjects_filter": self.subject(keys), "offset": len(found)})
            some = info["state"].get("subjects") or ()
            found += [subject.removeprefix(self.subject("")) for subject in some]
            if not some or len(found) >= info.get("total", 0):
                return found

    async def state(self) -> StreamState:
        """Return how full it is, as its leader has it. Raises `Unavailable`."""
        info = await self._info(None)
        state = info["state"]
        return StreamState(
            num_messages=state["messages"],
            num_bytes=state["bytes"],
            max_bytes=info["config"]["max_bytes"],
            num_consumers=state["consumer_count"],
            last_sequence=state["last_seq"],
            created=info["created"],
        )

    async def num_followers(self) -> int:
        """Return how many connections follow it now. Raises `Unavailable`."""
        consumers: list[dict[str, Any]] = []
        while True:
            answer = await self._call("CONSUMER.LIST", {"offset": len(consumers)})
            some = answer.get("consumers") or ()
            consumers += some
            if not some or len(consumers) >= answer["total"]:
                return sum(bool(each.get("push_bound")) for each in consumers)

    async def _info(self, body: object) -> dict[str, Any]:
        return await self._call("STREAM.INFO", body, seconds=REQUEST_SECONDS)

    async def _call(
        self, api: str, body: object, *, seconds: float = CALL_SECONDS
    ) -> dict[str, Any]:
        """Call JetStream's API about the stream. Raises `Unavailable`."""
        try:
            return await self.jetstream.call(f"{api}.{self.name}", body, seconds=seconds)
        except JetStreamError as error:
            raise Unavailable(f"{self.name}: {error}.") from error


async def until_known(send: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Send the same write until its outcome is known, and return that. Raises what `send` raises;
    `Unavailable`, but for `StreamFull`, after so many seconds only."""
    give_up, pause = time.monotonic() + seconds, PAUSE_SECONDS
    while True:
        try:
            return await send()
        except Unavailable as error:
            if isinstance(error, StreamFull) or time.monotonic() >= give_up:
                raise
            await asyncio.sleep(pause * (0.5 + random.random()))
            pause = min(MAX_PAUSE_SECONDS, 2 * pause)


def _as_expected(found: Stored | None, write: Write) -> bool:
    """Return whether a key is as a write expects it: another one under way may still fail."""
    return write.expected == (0 if found is None else found.sequence)


def _headers(encoded: str | None) -> dict[str, str]:
    """Return headers as JetStream's API has them: `NATS/1.0`, then a line for each."""
    lines = base64.b64decode(encoded or "").decode(errors="replace").split("\r\n")[1:]
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
