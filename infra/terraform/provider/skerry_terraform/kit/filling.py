"""Filling in responses to calls: their fields, and exceptions as diagnostics."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from skerry_terraform.kit.diagnostics import Diagnostics, ProviderError
from skerry_terraform.kit.messages import Message, message

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Response:
    """What a response is made of, once the method has returned or failed."""

    fields: dict[str, Any] = field(default_factory=dict[str, Any])
    diagnostics: Diagnostics = field(default_factory=Diagnostics)


CallsT = TypeVar("CallsT")
Fill = Callable[[CallsT, Message, Response], None]


@contextlib.contextmanager
def told(diagnostics: Diagnostics) -> Generator[None]:
    """Turn what goes wrong into diagnostics: none of it reaches Terraform as a broken call."""
    try:
        yield
    except ProviderError as error:
        diagnostics.add(error)
    except Exception as error:
        log.exception("a bug in the provider")
        diagnostics.error(
            "A bug in the provider",
            f"{type(error).__name__}: {error}\nPlease report it, with what TF_LOG=info shows.",
        )


def responds(name: str) -> Callable[[Fill[CallsT]], Callable[[CallsT, Message], Message]]:
    """Return a decorator for methods that fill in responses of this name. One that fails answers
    with the fields that it had set by then, and with why."""

    def decorated(fill: Fill[CallsT]) -> Callable[[CallsT, Message], Message]:
        @functools.wraps(fill)
        def respond(calls: CallsT, request: Message) -> Message:
            response = Response()
            with told(response.diagnostics):
                fill(calls, request, response)
            diagnostics = response.diagnostics.messages()
            return message(name, diagnostics=diagnostics, **response.fields)

        return respond

    return decorated
