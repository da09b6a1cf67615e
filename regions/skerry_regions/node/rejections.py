"""Core's exceptions in the platform's words: the one place that translates them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal

from skerry.errors import InvalidInput, Overloaded, PromptTooLong, SkerryError, Unavailable
from skerry_core.engine.worker import WorkerStopped
from skerry_core.request import EngineOverloaded, RequestRejected, RequestTooLong

State = Literal["ready", "failed", "closed"]  # of a served model

RESTART_SECONDS = 1.0  # advice to a client whose node is gone: time to place the request elsewhere


@contextmanager
def translated(gone: Callable[[], SkerryError]) -> Generator[None]:
    """What a worker refuses with becomes `InvalidInput`, `PromptTooLong`, `Overloaded` (with
    `retry_after`), or `gone()` when the worker has stopped."""
    try:
        yield
    except RequestTooLong as error:
        raise PromptTooLong(str(error)) from None
    except RequestRejected as error:
        raise InvalidInput(str(error)) from None
    except EngineOverloaded as error:
        raise Overloaded(str(error), retry_after=error.retry_after) from None
    except WorkerStopped:  # the news of it is on its way to the event loop
        raise gone() from None


def unavailable(what: str, state: State) -> Unavailable:
    """Why `what`, such as "the engine of M", takes nothing any more."""
    why = "is shutting down" if state == "closed" else "stopped on an error of its own"
    return Unavailable(f"{what} {why}", retry_after=RESTART_SECONDS)
