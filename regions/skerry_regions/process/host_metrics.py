"""What a process reports of the machine and the files that it depends on, for Prometheus."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from skerry_regions.prometheus import LabelValues, Metric, ReadGauge

ReadEnds = Callable[[], Mapping[LabelValues, float]]
"""When certificates end, in Unix seconds, by what they are for (`tls`, `authority`, `machine`) and
whose they are."""


def host_metrics(home: Path | None, ends: ReadEnds) -> list[Metric]:
    """Return the families of a process: the disk of its home, and certificates."""
    return [
        ReadGauge(
            "skerry_disk_free_bytes",
            "That the disk of SKERRY_HOME has left for us.",
            (),
            lambda: _disk(home, "f_bavail"),
        ),
        ReadGauge(
            "skerry_disk_bytes", "Size of the disk of SKERRY_HOME.", (),
            lambda: _disk(home, "f_blocks"),
        ),
        ReadGauge(
            "skerry_certificate_end_timestamp_seconds",
            "When a certificate ends: the one shown to clients, the authority's, a machine's.",
            ("use", "name"),
            ends,
        ),
    ]  # fmt: skip


def _disk(home: Path | None, field: str) -> dict[LabelValues, float]:
    if home is None:
        return {}
    try:
        disk = os.statvfs(home)
    except OSError:
        return {}
    return {(): float(getattr(disk, field)) * disk.f_frsize}
