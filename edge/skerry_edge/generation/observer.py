"""What watches one choice's stream, from the node that takes it to its end."""

from __future__ import annotations

from typing import Protocol

from skerry_regions.wire.client import TokenStream
from skerry_regions.wire.pins import PromptUse
from skerry_regions.wire.protocol import PhaseUsage


class StreamObserver(Protocol):
    """One of those that count a choice, trace it or charge it. Calls are synchronous and cheap."""

    def placed(self, stream: TokenStream) -> None:
        """Take note of the stream, once a region has given it."""
        ...

    def prompt(self, use: PromptUse) -> None:
        """Take note of what is known of its prompt, before any token."""
        ...

    def tokens(self, number: int) -> None:
        """Take note of a step that added so many tokens to the answer."""
        ...

    def done(self, reason: str, usage: PhaseUsage | None) -> None:
        """Take note of an answer that ended well. Usage is None where the node said none."""
        ...

    def failed(self, code: str, *, is_ours: bool) -> None:
        """Take note of the error that ended it; it is ours unless the caller's own limit did."""
        ...

    def closed(self) -> None:
        """Take note that it is over, whichever way. The last call, and the only one always made."""
        ...
