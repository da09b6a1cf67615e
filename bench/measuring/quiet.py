"""Detect foreign load, so that a disturbed sample is repeated instead of believed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
TOLERATED = 0.10  # cores' worth of other processes' work during a sample


def _busy_seconds() -> float:
    """CPU seconds that the whole machine used so far, time stolen by its host included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / TICKS


def _own_seconds(pids: list[int]) -> float:
    """CPU seconds of the given processes (threads included) and of this one."""
    total = sum(os.times()[:2])
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


@dataclass
class Watch:
    """`with Watch([pid, …]) as watch:` then `watch.foreign` is others' load in cores."""

    pids: list[int]
    foreign: float = 0.0

    def __enter__(self) -> Watch:
        self._start = time.perf_counter()
        self._others = _busy_seconds() - _own_seconds(self.pids)
        return self

    def __exit__(self, *_: object) -> None:
        elapsed = max(time.perf_counter() - self._start, 1 / TICKS)
        others = _busy_seconds() - _own_seconds(self.pids) - self._others
        # /proc counts in ticks: two ticks of rounding are nobody's work.
        self.foreign = max(0.0, others - 2 / TICKS) / elapsed

    @property
    def quiet(self) -> bool:
        return self.foreign <= TOLERATED
