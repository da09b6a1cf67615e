"""What there is on one Ray cluster, by its driver's reports, and what is to be done there. Pure.

While the head is away, or the driver, nodes go on, and count as they did. Nothing restarts them but
the plan: Ray places them and says that they died. So there is one count of failures, one pause that
grows, and one incarnation for each start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from skerry_regions.control.planning.launcher import (
    Ended,
    Launch,
    RunningProcess,
    never_started,
    starting,
)
from skerry_regions.control.reconcile.launched import judged
from skerry_regions.control.reconcile.ray.ray_messages import KeeperState, RayOrders, RayReport
from skerry_regions.registry import Member

SILENT_SECONDS = 5.0  # without an answer of a keeper, before its node is lost


@dataclass(slots=True)
class Kept:
    """One node of a cluster, as its keeper last described it."""

    state: KeeperState
    heard_at: float
    is_over: bool = False  # its end was reported


@dataclass(slots=True)
class ClusterPicture:
    """See above."""

    region: str
    term: int
    away: str = "it has not reported yet"
    kept: dict[str, Kept] = field(default_factory=dict[str, Kept])
    unknown: set[str] = field(default_factory=set[str])  # that never answered, and are not ours
    launches: dict[str, tuple[Launch, float]] = field(
        default_factory=dict[str, tuple[Launch, float]]
    )
    drains: set[str] = field(default_factory=set[str])
    stops: set[str] = field(default_factory=set[str])
    ended: list[Ended] = field(default_factory=list[Ended])
    deposed_by: int = 0

    @property
    def names(self) -> frozenset[str]:
        """Return those that Ray has."""
        return frozenset(self.kept.keys() | self.unknown)

    def has(self, id: str) -> bool:
        """Return whether a name runs here, or is to."""
        kept = self.kept.get(id)
        is_kept = kept is not None and not kept.is_over
        return is_kept or id in self.launches or id in self.unknown

    def incarnation(self, id: str) -> int:
        """Return the one that was here last of a name; 0 of none."""
        kept = self.kept.get(id)
        return 0 if kept is None else kept.state.record.incarnation

    def orders(self) -> RayOrders:
        return RayOrders(
            term=self.term,
            start=tuple(launch for launch, _ in self.launches.values()),
            drain=tuple(sorted(self.drains)),
            stop=tuple(sorted(self.stops)),
        )

    def take(self, report: RayReport, now: float) -> None:
        """Take in what a driver reports."""
        self.away, self.deposed_by = report.away, report.deposed_by
        if report.away:
            return
        there = {each.record.id for each in report.keepers} | {*report.silent}
        for state in report.keepers:
            self._take_state(state, now)
        for id in self.kept.keys() - there:
            self._lose(id, f"its keeper on the Ray cluster of {self.region} is gone")
        for id, kept in self.kept.items():
            if now - kept.heard_at > SILENT_SECONDS and id not in self.stops:
                self.stops.add(id)
                self._end(kept, f"its keeper is silent for {SILENT_SECONDS:g} s")
        for id, why in report.refused.items():
            self._drop_launch(id, f"it could not be started: {why}")
        self.unknown = {*report.silent} - self.kept.keys() - self.launches.keys()
        self.drains &= there
        self.stops &= there

    def _take_state(self, state: KeeperState, now: float) -> None:
        id, before = state.record.id, self.kept.get(state.record.id)
        if before is not None and before.state.record.incarnation != state.record.incarnation:
            self._lose(id, f"its keeper on the Ray cluster of {self.region} is gone")
            before = None
        kept = self.kept[id] = before or Kept(state, now)
        kept.state, kept.heard_at = state, now
        ordered = self.launches.get(id)
        if ordered is not None and ordered[0].incarnation == state.record.incarnation:
            del self.launches[id]
        if state.record.draining_since is not None:
            self.drains.discard(id)
        if state.end is not None:
            self.stops.add(id)  # the keeper has nothing left to keep
            self._end(kept, "")

    def _end(self, kept: Kept, lost: str) -> None:
        """Report an end once."""
        if kept.is_over:
            return
        kept.is_over = True
        record, end = kept.state.record, kept.state.end
        is_draining = record.draining_since is not None
        status, seconds = None, kept.state.now - record.started
        log = last_words = ""
        if end is not None:
            status, seconds, log, last_words = end.status, end.seconds, end.log, end.last_words
            lost = f"it could not be started: {end.refused}" if end.refused else ""
        self.ended.append(
            Ended(
                id=record.id,
                owner=record.owner,
                asked=is_draining or (record.was_ready and status == 0),
                ran_seconds=seconds,
                status=status,
                was_ready=record.was_ready,
                log=log,
                last_words=last_words,
                lost="" if is_draining else lost,
            )
        )

    def _lose(self, id: str, why: str) -> None:
        self._end(self.kept.pop(id), why)

    def _drop_launch(self, id: str, why: str) -> None:
        if (ordered := self.launches.pop(id, None)) is not None:
            self.ended.append(never_started(ordered[0], why))

    def running(self, members: Mapping[str, Member], now: float) -> Iterable[RunningProcess]:
        """Yield what runs, and what is to."""
        for id, kept in self.kept.items():
            if not kept.is_over:
                yield self._judged(id, kept, members.get(id))
        for launch, since in self.launches.values():
            yield starting(launch, now - since)
        for id in self.unknown:  # of a control plane before us: replaced by ours
            yield RunningProcess(
                id=id, owner=id.rpartition("-")[0], kind="node", region=self.region,
                fingerprint="", pid=0, state="draining" if id in self.stops else "starting",
            )  # fmt: skip

    def _judged(self, id: str, kept: Kept, member: Member | None) -> RunningProcess:
        state, record = kept.state, kept.state.record
        if member is not None and member.pid != state.pid:
            member = None  # of another start
        is_told = id in self.drains or (member is not None and member.state == "draining")
        if record.draining_since is None and is_told:
            record = replace(record, draining_since=state.now)
        silence = state.now - state.healthy_at
        return judged(record, state.pid, member, state.now, silence=silence)
