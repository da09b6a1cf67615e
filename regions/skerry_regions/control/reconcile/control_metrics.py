"""What a control plane reports of itself and of all that it wants and sees, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol, get_args

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.resources import DEPLOYMENT, EDGE_NODE, POOL, REGION
from skerry_regions.control.desired.statuses import Phase, PoolStatus
from skerry_regions.control.desired.views import Observer
from skerry_regions.control.reconcile.failures import Failures
from skerry_regions.node.stream_metrics import LATE_BOUNDS
from skerry_regions.process.host_metrics import ReadEnds, host_metrics
from skerry_regions.prometheus import (
    Gauge,
    Histogram,
    LabelValues,
    Metric,
    ReadCounter,
    ReadGauge,
)
from skerry_regions.registry import Member

MAX_KNOWN = 10_000  # processes whose starts are counted
KINDS = (REGION, POOL, EDGE_NODE, DEPLOYMENT)


class Seer(Observer, Protocol):
    """Whoever looks at what runs, and how that goes."""

    failures: Failures
    num_errors: int

    @property
    def members(self) -> tuple[Member, ...]: ...

    @property
    def seconds_behind(self) -> float: ...


class Turn(Protocol):
    """The lead of one of several control planes, and how far it has read their log."""

    @property
    def is_leading(self) -> bool: ...

    @property
    def term(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    @property
    def seconds_behind(self) -> float: ...


def turn_metrics(turn: Turn) -> list[Metric]:
    """Return what one of several control planes reports of that."""
    return [
        Gauge(
            "skerry_control_leader", "1 of the control plane that leads.",
            lambda: float(turn.is_leading),
        ),
        Gauge(
            "skerry_control_term", "That this control plane leads in; 0 while it follows.",
            lambda: float(turn.term),
        ),
        Gauge(
            "skerry_control_log_sequence", "Of the last transaction that was read or written.",
            lambda: float(turn.sequence),
        ),
        Gauge(
            "skerry_control_log_behind_seconds",
            "Since the control plane last had read all transactions that there were.",
            lambda: turn.seconds_behind,
        ),
    ]  # fmt: skip


class Restarts:
    """How often each process has started again, as far as one look after the other shows it."""

    def __init__(self) -> None:
        self._incarnations: dict[str, int] = {}
        self._counts: dict[str, int] = {}

    def look(self, members: Iterable[Member]) -> Mapping[LabelValues, float]:
        """Take in who is there now; return the counts by id."""
        for member in members:
            before = self._incarnations.get(member.id)
            if before is None and len(self._incarnations) >= MAX_KNOWN:
                continue
            if before is not None and member.incarnation > before:
                self._counts[member.id] += 1
            self._incarnations[member.id] = max(before or 0, member.incarnation)
            self._counts.setdefault(member.id, 0)
        return {(id,): float(number) for id, number in self._counts.items()}


class ControlMetrics:
    """The metrics of one control plane; all but the lateness of its loop are read when requested.

    Lives on its event loop.
    """

    def __init__(
        self,
        seer: Seer,
        desired: Callable[[], Desired],
        home: Path | None,
        ends: ReadEnds,
        turn: Turn | None = None,
    ) -> None:
        """`turn` is of one of several control planes."""
        self._seer = seer
        self._desired = desired
        self._restarts = Restarts()
        self.loop_late = Histogram(
            "skerry_event_loop_late_seconds",
            "Times that the event loop was late, and by how much.",
            LATE_BOUNDS,
        )
        self._read: list[Metric] = [
            Gauge(
                "skerry_control_revision", "Of what is wanted.", lambda: float(desired().revision)
            ),
            Gauge(
                "skerry_control_observed_revision",
                "Of what was wanted when the control plane last looked.",
                lambda: float(seer.revision),
            ),
            Gauge(
                "skerry_control_behind_seconds",
                "Since the control plane last looked at what runs, and all went well.",
                lambda: seer.seconds_behind,
            ),
            ReadCounter(
                "skerry_control_errors_total", "Looks at what runs that failed.", (),
                lambda: {(): float(seer.num_errors)},
            ),
            ReadGauge(
                "skerry_control_phase",
                "Regions, pools, edge nodes and deployments: 1 of the phase that each is in.",
                ("kind", "id", "phase"),
                self._phases,
            ),
            ReadGauge(
                "skerry_control_pool_nodes",
                "Nodes of a pool: desired, ready, and ready of the present spec (updated).",
                ("pool", "state"),
                self._pool_nodes,
            ),
            ReadGauge(
                "skerry_control_models_asleep",
                "1 of each model whose pools want no node now, and one of which wakes by itself.",
                ("model_name",),
                self._asleep,
            ),
            ReadGauge(
                "skerry_control_crash_loops",
                "1 of each pool and edge node whose processes end again and again.",
                ("owner",),
                lambda: {(owner,): 1.0 for owner in seer.failures.failing},
            ),
            ReadCounter(
                "skerry_process_restarts_total",
                "Times that a node or edge started again, whoever started it.",
                ("id",),
                lambda: self._restarts.look(seer.members),
            ),
            *host_metrics(home, ends),
            *(() if turn is None else turn_metrics(turn)),
        ]  # fmt: skip

    def families(self) -> list[Metric]:
        """Return all of them, for an exposition."""
        return [self.loop_late, *self._read]

    def _phases(self) -> dict[LabelValues, float]:
        found: dict[LabelValues, float] = {}
        for kind in KINDS:
            for record in self._desired().of(kind):
                status = self._seer.status(record)
                if status is not None:
                    for phase in get_args(Phase):
                        found[kind.name, record.id, phase] = float(status.phase == phase)
        return found

    def _pool_nodes(self) -> dict[LabelValues, float]:
        found: dict[LabelValues, float] = {}
        for record in self._desired().of(POOL):
            status = self._seer.status(record)
            if isinstance(status, PoolStatus):
                found[record.id, "desired"] = float(status.desired_replicas)
                found[record.id, "ready"] = float(status.ready_replicas)
                found[record.id, "updated"] = float(status.updated_replicas)
        return found

    def _asleep(self) -> dict[LabelValues, float]:
        desired, wanted, waking = self._desired(), Counter[str](), set[str]()
        for id, spec in desired.pools().items():
            record, model = desired.get(POOL, id), desired.model_of(id)
            status = None if record is None else self._seer.status(record)
            if model is not None and isinstance(status, PoolStatus):
                wanted[model] += status.desired_replicas
                if spec.is_autoscaled:
                    waking.add(model)
        return {(model,): 1.0 for model in waking if not wanted[model]}
