"""Backoff of what failed lately: not started again before a growing pause is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from random import Random

from skerry_regions.control.planning.launcher import RunningProcess
from skerry_regions.process.backoff import Backoff, RestartPolicy


@dataclass(frozen=True, slots=True)
class ProcessEnds:
    """How often a process ended by itself, and with which status the last time."""

    count: int
    status: int | None


class Failures:
    """Of processes by id, and of their owners. Spares work only: it may be forgotten."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._backoffs: dict[str, Backoff] = {}  # by process id
        self._held: dict[str, float] = {}  # by process id: not before then
        self.failing: dict[str, str] = {}  # by owner in a crash loop: what its last process died of
        self.ends: dict[str, ProcessEnds] = {}  # by process id: those that no one wanted

    def failed(
        self,
        id: str,
        owner: str,
        ran_seconds: float,
        what: str,
        now: float,
        status: int | None = None,
    ) -> str:
        """Note that a process ended unasked, or could not be started; return it in a sentence.
        `status` is how it ended, where that is known."""
        before = self.ends.get(id)
        self.ends[id] = ProcessEnds(1 + (before.count if before is not None else 0), status)
        backoff = self._backoffs.setdefault(id, Backoff(RestartPolicy(), self._rng))
        pause = backoff.failed(ran_seconds)
        self._held[id] = now + pause
        message = f"{what}; starting it again in {pause:.1f} s"
        if backoff.is_crash_loop:
            self.failing[owner] = message
        return message

    def ended(self, id: str) -> None:
        """Note that a process ended as it was to."""
        self._backoffs.pop(id, None)

    def held(self, owners: Collection[str], now: float) -> set[str]:
        """Return ids that are not to be started yet. What is wanted no more is forgotten."""
        self._held = {id: until for id, until in self._held.items() if now < until}
        self._backoffs = {
            id: backoff for id, backoff in self._backoffs.items() if id.rpartition("-")[0] in owners
        }
        self.ends = {id: each for id, each in self.ends.items() if id.rpartition("-")[0] in owners}
        return set(self._held)

    def recovered(self, processes: Iterable[RunningProcess]) -> None:
        """Note which owners have processes that run steadily."""
        steady = RestartPolicy().steady
        well = {each.owner for each in processes if each.state == "ready" and each.seconds > steady}
        self.failing = {id: why for id, why in self.failing.items() if id not in well}
