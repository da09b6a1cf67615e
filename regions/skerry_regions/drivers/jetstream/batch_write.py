"""Several messages of one stream that are stored together, or none of them (NATS's ADR-50).

They have no ids. After a lost answer the same messages are sent once more, and refused if they were
stored, because what one of them expects is so no longer; then the last one, whose data no other
write has, says whether they were.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from skerry.errors import Unavailable
from skerry_regions.drivers.jetstream.answers import ErrorCode, JetStreamError, StreamFull, answered
from skerry_regions.drivers.jetstream.stream import (
    ID_HEADER,
    WRITE_SECONDS,
    KeyedStream,
    RevisionConflict,
    Write,
    until_known,
)


async def write_together(
    stream: KeyedStream, writes: Sequence[Write], *, seconds: float = WRITE_SECONDS
) -> None:
    """Store messages of different keys, of which one at least expects something.

    Raises `RevisionConflict` of the last one's key when an expectation does not hold; besides as
    `KeyedStream.write`.
    """
    await until_known(lambda: _write_once(stream, writes), seconds)


async def _write_once(stream: KeyedStream, writes: Sequence[Write]) -> None:
    batch, last = secrets.token_hex(12), writes[-1]
    try:
        for number, write in enumerate(writes, start=1):
            headers = {name: value for name, value in write.headers.items() if name != ID_HEADER}
            headers |= {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)}
            if write is last:
                headers["Nats-Batch-Commit"] = "1"
            answer = await stream.jetstream.request(
                stream.subject(write.key), write.data, headers=headers
            )
            if answer.data:  # of the last one, or an error
                answered(answer)
    except JetStreamError as error:
        if error.code == ErrorCode.STORE_FAILED:
            raise StreamFull(f"{stream.name} is full: {error}.") from error
        if error.code != ErrorCode.WRONG_LAST_SEQUENCE:
            raise Unavailable(f"{stream.name}: {error}.") from error
        found = await stream.last(last.key)
        if found is None or found.data != last.data:
            raise RevisionConflict(last.key, found) from error
