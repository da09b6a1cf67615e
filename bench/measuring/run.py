"""What benches begin and end with: their options, the machine that they are on, and the report."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.measuring import machine, stats


def parser(doc: str | None, *, quick: str) -> argparse.ArgumentParser:
    """With `--quick`, of which `quick` says what it does, and `--json`."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    return made


class Run:
    """One run of a bench. Measures the machine's ceilings, and shows what it is, as it begins."""

    def __init__(self, given: argparse.Namespace, *, threads: int = 2, min_width: int = 0) -> None:
        """`threads` that are measured; `min_width` of the console, also where it is piped."""
        self.is_quick: bool = given.quick
        self.console = Console(width=max(Console().width, min_width))
        self._json: Path | None = given.json
        self._machine, self._limits = machine.describe(), machine.limits(threads)
        stats.heading(self.console, self._machine, self._limits)

    def write(self, cells: Sequence[stats.Cell], **more: object) -> None:
        """The report, where `--json` says."""
        rows = stats.rows(list(cells))
        report = {"machine": self._machine, "limits": self._limits, "rows": rows}
        stats.write(self._json, report | more)
