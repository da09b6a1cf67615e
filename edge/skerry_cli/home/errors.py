"""What commands cannot do, in a sentence for the person who gave them."""

from __future__ import annotations


class StateError(Exception):
    """State that cannot be read or written; the message says what to do."""


class CannotStart(Exception):
    """A process cannot start; the message says why and what to do."""
