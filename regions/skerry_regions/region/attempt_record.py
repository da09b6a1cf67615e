"""How each try at a request went, for its trace. Written per attempt, never per token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from skerry.errors import CapacityError, InternalError, SkerryError
from skerry_regions.phases import Timeline
from skerry_regions.routing.placement import Placement

MAX_RECORDS = 32  # kept of one stream: its last ones
MAX_REASON = 200  # characters of why one ended


@dataclass(slots=True, kw_only=True)
class AttemptRecord:
    """One try at a request, seen from its edge. Times are seconds on the edge's monotonic clock."""

    nodes: tuple[str, ...]  # the one that does both, or who prefills and who decodes
    candidates: Sequence[Placement] = ()  # the chosen one, then what it was compared with
    is_exact: bool = True  # goes on bit for bit where an earlier attempt left off
    same_build: bool = True  # False: left the numeric build of the transcript
    num_before: int = 0  # output tokens that earlier attempts made
    asked: float  # when a route was looked for
    began: float  # when it was sent to its nodes
    first_tokens: float | None = None  # when they came
    ended: float | None = None
    num_tokens: int = 0  # output tokens that this one made, so far or in all
    outcome: str = ""  # the finish reason, or the code of the error that ended it; empty: it runs
    reason: str = ""  # the error's sentence
    timelines: dict[str, Timeline] = field(default_factory=dict)  # by node, of those that sent one

    def add_timeline(self, node: str, timeline: Timeline | None) -> None:
        """Note a node's own timeline."""
        if timeline is not None:
            self.timelines[node] = timeline

    def end(self, now: float, outcome: str, reason: str = "") -> None:
        """Note how it ended; the first call counts."""
        if self.ended is None:
            self.ended = now
            self.outcome = outcome
            self.reason = reason[:MAX_REASON]

    def fail(self, now: float, error: SkerryError) -> None:
        """Note the error that ended it. Its sentence is kept only where no caller's text can be in
        it: that of a wrong request may quote it."""
        quotes_nothing = isinstance(error, CapacityError | InternalError)
        self.end(now, error.code, error.message if quotes_nothing else "")

    @property
    def network_seconds(self) -> float | None:
        """Return seconds to the decode node and back; None when it sent no timeline."""
        timeline = self.timelines.get(self.nodes[-1])
        if self.ended is None or timeline is None:
            return None
        return max(0.0, self.ended - self.began - timeline.seconds)


class AttemptedStream(ABC):
    """A stream with records of its attempts."""

    @property
    @abstractmethod
    def attempts(self) -> Sequence[AttemptRecord]:
        """Return them in order; the last one may still run. Of very many, the last ones."""
        ...
