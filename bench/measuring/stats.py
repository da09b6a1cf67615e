"""Medians, paired ratios and the table that every bench prints."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def ratio(ours: float, peer: float) -> float:
    """1 where both are nothing."""
    if peer:
        return ours / peer
    return math.inf if ours else 1.0


@dataclass
class Cell:
    """One figure measured for several systems in the same rounds."""

    name: str
    unit: str
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, system: str, value: float) -> None:
        self.samples.setdefault(system, []).append(value)

    def median(self, system: str) -> float:
        return statistics.median(self.samples[system])

    def ratios(self, ours: str, peer: str) -> list[float]:
        """Round by round, so that a slow moment of the machine hits both sides."""
        return [ratio(a, b) for a, b in zip(self.samples[ours], self.samples[peer], strict=True)]

    def ratio(self, ours: str, peer: str) -> float:
        return statistics.median(self.ratios(ours, peer))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def table(title: str, cells: list[Cell], ours: str, peers: list[str]) -> Table:
    """A row per figure: every system's median, and our ratio to each peer with its spread."""
    result = Table(title=title)
    result.add_column("figure")
    systems = [ours, *peers]
    for system in systems:
        result.add_column(system, justify="right")
    for peer in peers:
        result.add_column(f"ratio to {peer} [min..max]", justify="right")
    for cell in cells:
        row = [f"{cell.name}, {cell.unit}"]
        row += [f"{cell.median(s):.1f}" if s in cell.samples else "-" for s in systems]
        for peer in peers:
            if peer in cell.samples and ours in cell.samples:
                ratios = cell.ratios(ours, peer)
                row.append(f"{cell.ratio(ours, peer):.2f} [{min(ratios):.2f}..{max(ratios):.2f}]")
            else:
                row.append("-")
        result.add_row(*row)
    return result


def rows(cells: list[Cell]) -> list[dict[str, Any]]:
    """Every sample of every cell, ready for JSON."""
    return [
        {
            "figure": cell.name,
            "unit": cell.unit,
            "system": system,
            "median": statistics.median(values),
            "samples": values,
        }
        for cell in cells
        for system, values in cell.samples.items()
    ]


def write(path: Path | None, report: dict[str, Any]) -> None:
    """Write the report where `--json` says."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")


def heading(console: Console, machine: dict[str, Any], limits: dict[str, float]) -> None:
    """What was measured on what."""
    console.print(" · ".join(f"{key} {value}" for key, value in machine.items()))
    console.print(" · ".join(f"{key} {value}" for key, value in limits.items()))
