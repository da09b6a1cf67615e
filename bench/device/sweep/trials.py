"""Candidates of a call against what the library launches now, in turn, until the time is over."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.device.gpu_subject import Subject, captured
from bench.device.sweep.launches import Change, candidates_of, changed, launches_of

NOW = "as it is"
_MOST_ERROR = 1e-2  # of the norm: what another order of sums in bf16 explains
_LEAST_GAIN = 1.01


@dataclass(frozen=True)
class Case:
    """A call that is swept, over data that no cache holds."""

    name: str
    prepare: Callable[[], Callable[[], Tensor]]
    """Return the call, which returns what it wrote; what it works on is made before."""
    least: float  # seconds at the ceilings
    constants: Sequence[Change] = ()  # candidates beside those of the launches


@dataclass(frozen=True)
class TrialRow:
    """A candidate of a case; microseconds."""

    case: str
    change: str
    least: float = 0.0  # of its runs
    median: float = 0.0
    spread: float = 0.0  # half of the runs lie within so many of one another
    share: float = 0.0  # of the roof
    gain: float = 0.0  # the current median over this one
    wins: bool = False  # by more than either spread
    failure: str = ""

    def line(self) -> str:
        if self.failure:
            return f"{self.case}, {self.change}: {self.failure}"
        return (
            f"{self.case}, {self.change}: {self.median:.1f} us (least {self.least:.1f}, spread "
            f"{self.spread:.1f}), {self.share:.0%} of the roof, x{self.gain:.3f}"
        ) + " wins" * self.wins


class _Candidate:
    """Changes of a call, compiled and captured."""

    def __init__(self, case: Case, changes: Sequence[Change], device: torch.device) -> None:
        self.name = " ".join(map(str, changes)) or NOW
        self.changes = changes
        self.times: list[float] = []
        with changed(changes):
            call = case.prepare()
            self.made = call().clone()
            self.run = captured(call, device)

    @property
    def middle(self) -> tuple[float, float]:
        """Return the median, and the distance of the quartiles."""
        low, middle, high = statistics.quantiles(self.times, n=4)
        return middle, high - low

    def beats(self, other: _Candidate) -> bool:
        """Return whether it takes less time, by more than the spread of either."""
        (own, spread), (its, its_spread) = self.middle, other.middle
        return its > _LEAST_GAIN * own and its - own > max(spread, its_spread)


def sweep(subject: Subject, case: Case, seconds: float) -> list[TrialRow]:
    """Measure each change alone, then those that won together; the quickest first."""
    until = time.perf_counter() + seconds
    now = _Candidate(case, [], subject.device)
    singles = [change for launch in launches_of(case.prepare()) for change in candidates_of(launch)]
    tried, failures = [now], list[TrialRow]()
    for change in (*case.constants, *singles):
        if time.perf_counter() > until - seconds / 3:  # the rest is for measuring
            failures.append(TrialRow(case.name, str(change), failure="no time was left"))
        else:
            _try(subject, case, [change], tried, failures)
    _measure(subject, tried, until)
    if len(winners := _winners(tried)) > 1:
        _try(subject, case, winners, tried, failures)
        _measure(subject, tried, time.perf_counter() + seconds / 10)
    return _rows(case, tried) + failures


def _try(
    subject: Subject, case: Case, changes: Sequence[Change], tried: list[_Candidate],
    failures: list[TrialRow],
) -> None:  # fmt: skip
    """Compile a candidate and compare what it makes with what is made now."""
    name = " ".join(map(str, changes))
    try:
        candidate = _Candidate(case, changes, subject.device)
    except Exception as error:  # many do not fit into shared memory
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        failures.append(TrialRow(case.name, name, failure=reason[:120]))
        return
    expected = tried[0].made.float()
    error = (candidate.made.float() - expected).norm() / expected.norm()
    if not error <= _MOST_ERROR:
        failures.append(TrialRow(case.name, name, failure=f"makes other values: {error:.2g}"))
    else:
        tried.append(candidate)


def _measure(subject: Subject, tried: Sequence[_Candidate], until: float) -> None:
    """Run all candidates in turn, in another order each time."""
    order = random.Random(0)
    for _ in range(subject.sizes.trials):
        for candidate in order.sample(list(tried), len(tried)):
            subject.wait()
            begun = time.perf_counter()
            for _ in range(subject.sizes.repeats):
                candidate.run()
            subject.wait()
            candidate.times.append(1e6 * (time.perf_counter() - begun) / subject.sizes.repeats)
        if time.perf_counter() > until and len(tried[-1].times) > 2:
            return


def _rows(case: Case, tried: Sequence[_Candidate]) -> list[TrialRow]:
    rows, (current, _) = list[TrialRow](), tried[0].middle
    for candidate in tried:
        median, spread = candidate.middle
        rows.append(
            TrialRow(
                case.name, candidate.name, min(candidate.times), median, spread,
                1e6 * case.least / median, current / median, candidate.beats(tried[0]),
            )
        )  # fmt: skip
    return sorted(rows, key=lambda row: row.median)


def _winners(tried: Sequence[_Candidate]) -> list[Change]:
    """Return of each number that won the value that won most."""
    found: dict[tuple[object, str], Change] = {}
    for candidate in sorted(tried[1:], key=lambda each: each.middle[0]):
        for change in candidate.changes if candidate.beats(tried[0]) else ():
            found.setdefault((change.owner, change.name), change)
    return list(found.values())
