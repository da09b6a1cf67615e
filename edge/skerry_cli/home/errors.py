"""What commands cannot do, in a sentence for the person who gave them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator


class CommandFailed(Exception):
    """A command cannot do what it is given to; `main` prints the message."""


class StateError(CommandFailed):
    """State that cannot be read or written; the message says what to do."""


class CannotStart(CommandFailed):
    """A process cannot start; the message says why and what to do."""


@contextlib.contextmanager
def raised_as(kind: type[Exception], *errors: type[Exception]) -> Generator[None]:
    """Raise errors of a block in the words that they have, as the kind its callers know."""
    try:
        yield
    except errors as error:
        raise kind(str(error)) from None
