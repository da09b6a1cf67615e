"""A server that runs beside the bench, and what its processes use."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Served:
    url: str  # of its chat completions
    token: str
    pid: int  # of the process; its children count too

    @property
    def cpu_seconds(self) -> float:
        """Of all threads, also those that have ended."""
        return sum(time.clock_gettime(_cpu_clock(pid)) for pid in family(self.pid))

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        pages = sum(int(_of(pid, "statm").split()[1]) for pid in family(self.pid))
        return pages * resource.getpagesize()


def family(pid: int) -> Iterator[int]:
    """A process and all that descend from it."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from family(int(child))


def _cpu_clock(pid: int) -> int:
    """Linux's clock of another process's CPU time, in nanoseconds: clock_getcpuclockid(3)."""
    return (~pid << 3) | 2


def _of(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()
