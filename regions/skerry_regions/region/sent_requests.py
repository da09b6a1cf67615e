"""What an edge sends where, reported to the other edges of its region within milliseconds.

Edges that price the same nodes by reports of the same age all choose the same idle one. With what
the others sent since (`Bookings`), and with the arrivals of all (`Traffic`), sixteen edges choose
as well as one; randomising among equals does not help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from skerry_regions.routing.placement import Demand, Placement
from skerry_regions.view import NodeLoad
from skerry_regions.wire.reports import MAX_SENT, Report, SentRequest

COALESCE_SECONDS = 0.005


class SentRequests:
    """Collects them for a moment. Lives on one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tell: Callable[[list[Report]], None] | None = None
        self._waiting: dict[str, list[tuple[float, Placement, int]]] = {}  # by model

    def tell_by(self, tell: Callable[[list[Report]], None]) -> None:
        """Send reports by `tell` from now on; until then nothing is collected."""
        self._tell = tell

    def add(self, placement: Placement, demand: Demand, now: float) -> None:
        """Send a request's placement to the other edges, soon."""
        if self._tell is None:
            return
        if not self._waiting:
            asyncio.get_running_loop().call_later(COALESCE_SECONDS, self._flush)
        waiting = self._waiting.setdefault(demand.model, [])
        if len(waiting) < MAX_SENT:
            waiting.append((now, placement, demand.prompt_tokens))

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        now = self._clock()
        reports = [
            Report(
                model=model,
                load=NodeLoad(),
                sent=[
                    SentRequest(
                        prefill=placement.prefill,
                        decode=placement.decode,
                        prompt_tokens=prompt_tokens,
                        cached_tokens=placement.cached_tokens,
                        age=max(now - at, 0.0),
                    )
                    for at, placement, prompt_tokens in requests
                ],
            )
            for model, requests in waiting.items()
        ]
        if self._tell is not None:
            self._tell(reports)
