"""How far a stream is carried on when nodes fail it, and which errors another node may not have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from skerry.errors import CapacityError, InternalError, RateLimited, RequestTimeout, SkerryError
from skerry_regions.wire.protocol import Embed, Submit


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """How far a stream is carried on."""

    attempts: int = 256  # in a row without a token, all nodes together
    patience: float = 30.0  # seconds without a token, from the first failure on
    start_patience: float = 5.0  # seconds in which nodes that cannot be reached may come back
    pause: float = 0.05  # seconds before looking again when no node takes it; doubled each time …
    longest_pause: float = 1.0  # … up to this
    lease_seconds: float = 30.0  # that a decode node waits for KV before it computes itself

    def pauses(self) -> Iterator[float]:
        """Yield the seconds to wait, one time after the other."""
        pause = self.pause
        while True:
            yield pause
            pause = min(2 * pause, self.longest_pause)


def is_recoverable(error: SkerryError) -> bool:
    """Return whether elsewhere may help. A deadline is the same everywhere, and so are a wrong
    request and a tenant that sends too much: it shall not go to the next node."""
    if isinstance(error, RequestTimeout | RateLimited):
        return False
    return isinstance(error, CapacityError | InternalError)


def in_zone(request: Submit | Embed) -> str:
    """Return the zone that a request is bound to, for the sentence of an error."""
    return f" in the zone {request.residency!r}" if request.residency is not None else ""
