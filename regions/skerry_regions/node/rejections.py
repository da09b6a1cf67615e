"""Core's exceptions in the platform's words: the one place that translates them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from skerry.errors import InvalidInput, Overloaded, PromptTooLong, SkerryError, Unavailable
from skerry_core.request import EngineOverloaded, RequestRejected, RequestTooLong
from skerry_core.worker_thread import WorkerStopped

State = Literal["ready", "failed", "closed"]  # of a served model

RESTART_SECONDS = 1.0  # advice to a client whose node is gone: time to place the request elsewhere


REFUSED = (RequestRejected, EngineOverloaded, WorkerStopped)
"""What a worker refuses a request with."""


def rejection(error: Exception, gone: Callable[[], SkerryError]) -> SkerryError:
    """Return what stands for one of `REFUSED`: `InvalidInput`, `PromptTooLong`, `Overloaded` (with
    `retry_after`), or `gone()` when the worker has stopped."""
    match error:
        case RequestTooLong():
            return PromptTooLong(str(error))
        case RequestRejected():
            return InvalidInput(str(error))
        case EngineOverloaded():
            return Overloaded(str(error), retry_after=error.retry_after)
        case _:  # WorkerStopped: the news of it is on its way to the event loop
            return gone()


def unavailable(what: str, state: State) -> Unavailable:
    """Return why `what`, such as "the engine of M", takes nothing any more."""
    why = "is shutting down" if state == "closed" else "stopped on an error of its own"
    return Unavailable(f"{what} {why}", retry_after=RESTART_SECONDS)
