"""Requests that may wait: `ai.batch(…)` queues them, its `Batch` waits for their answers.

What to send and when to poll again is decided here without I/O; the clients do it.
"""

from __future__ import annotations

import uuid
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal

from skerry._exchange import Sleep, Step
from skerry._replies import error_from_content
from skerry._results import Result
from skerry.errors import InternalError, RequestTimeout, SkerryError

FIRST_PAUSE = 0.1  # seconds between two questions …
LONGEST_PAUSE = 5.0  # … which grow to this
PAUSE_GROWTH = 1.5

BatchStatus = Literal["queued", "running", "done"]

Ask = Callable[[dict[str, Any], Mapping[str, str]], Generator[Step, Any, Any]]
"""One call of the batch's model with `queueRequest=true`: a body, and headers."""


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """What came of one request: `result`, or `error`."""

    index: int  # of the request
    reference: str | None  # its `external_reference`
    result: Result | Any
    error: SkerryError | None = None

    def unwrap(self) -> Result | Any:
        """Return the result. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.result


def submit(ask: Ask, requests: Iterable[Mapping[str, Any]]) -> Generator[Step, Any, str]:
    """Queue requests; the batch's id."""
    body = {"requests": [dict(each) for each in requests]}
    told = yield from ask(body, {"idempotency-key": str(uuid.uuid4())})
    match told:
        case {"request_id": str(id)}:
            return id
        case _:
            raise InternalError("The platform's answer names no batch.")


def ask_once(ask: Ask, id: str) -> Generator[Step, Any, tuple[BatchStatus, list[BatchAnswer]]]:
    """Yield how far a batch is; its answers, by index, once it is done."""
    told = yield from ask({"request_id": id}, {})
    match told:
        case {"responses": list(responses)}:
            answers = [_answer(each) for each in responses]
            return "done", sorted(answers, key=lambda answer: answer.index)
        case {"status": ("queued" | "running") as status}:
            return status, []
        case _:
            raise InternalError("The platform's answer says nothing of the batch.")


def ask_until_done(
    ask: Ask, id: str, timeout: float | None, clock: Callable[[], float] = monotonic
) -> Generator[Step, Any, list[BatchAnswer]]:
    """Poll until all is done. Raises `RequestTimeout` after `timeout` s; the batch goes on."""
    end = None if timeout is None else clock() + timeout
    pause = FIRST_PAUSE
    while True:
        status, answers = yield from ask_once(ask, id)
        if status == "done":
            return answers
        if end is not None and clock() + pause > end:
            raise RequestTimeout(
                f"Batch {id} is {status} after {timeout:g} s; it goes on.", http_status=0, number=0,
                retryable=False,
            )  # fmt: skip
        yield Sleep(pause)
        pause = min(LONGEST_PAUSE, pause * PAUSE_GROWTH)


def _answer(told: Any) -> BatchAnswer:
    match told:
        case {"id": int(index), "success": True, "result": result}:
            return BatchAnswer(index, told.get("external_reference"), result)
        case {"id": int(index)}:
            error = error_from_content(told, request=None)
            return BatchAnswer(index, told.get("external_reference"), None, error)
        case _:
            raise InternalError("The platform's answer holds what is no answer.")


class QueuedRequests:
    """What `Batch` and `AsyncBatch` are; `drive` runs the steps of a call."""

    def __init__(
        self, model: str, id: str, ask: Ask, drive: Callable[[Generator[Step, Any, Any]], Any]
    ) -> None:
        self.model = model
        self.id = id
        self._ask = ask
        self._drive = drive

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, {self.id!r})"


class Batch(QueuedRequests):
    """Requests that were queued. `model` and `id` find them again: `ai.find_batch(model, id)`."""

    def status(self) -> BatchStatus:
        """Return how far it is now."""
        status: BatchStatus = self._drive(ask_once(self._ask, self.id))[0]
        return status

    def wait(self, timeout: float | None = None) -> list[BatchAnswer]:
        """Return the answers, in the order of the requests, once all are there.

        Raises `RequestTimeout` after `timeout` seconds; the platform goes on with the batch.
        """
        answers: list[BatchAnswer] = self._drive(ask_until_done(self._ask, self.id, timeout))
        return answers

    def __iter__(self) -> Iterator[BatchAnswer]:
        """Return the answers, once all are there."""
        return iter(self.wait())


class AsyncBatch(QueuedRequests):
    """`Batch` for `AsyncAI`."""

    async def status(self) -> BatchStatus:
        """Return how far it is now."""
        status: BatchStatus = (await self._drive(ask_once(self._ask, self.id)))[0]
        return status

    async def wait(self, timeout: float | None = None) -> list[BatchAnswer]:  # noqa: ASYNC109
        """See `Batch.wait`."""
        answers: list[BatchAnswer] = await self._drive(ask_until_done(self._ask, self.id, timeout))
        return answers

    async def __aiter__(self) -> AsyncIterator[BatchAnswer]:
        """Yield the answers, once all are there."""
        for answer in await self.wait():
            yield answer
