"""What commands cannot do, in a sentence for the person who gave them."""

from __future__ import annotations


class CommandFailed(Exception):
    """A command cannot do what it is given to; `main` prints the message."""


class StateError(CommandFailed):
    """State that cannot be read or written; the message says what to do."""


class CannotStart(CommandFailed):
    """A process cannot start; the message says why and what to do."""
