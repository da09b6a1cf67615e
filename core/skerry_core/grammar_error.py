"""What may go wrong with a grammar, without the library behind it, which may be absent."""

from __future__ import annotations


class GrammarError(Exception):
    """The grammar cannot be used, or not any longer; the message says why."""
