"""`skerry simulate`: a platform under a virtual clock, and what would be if it were another."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skerry_cli.arguments import Commands, add_command, count, positive_seconds
from skerry_cli.home.state import Home
from skerry_cli.observe.fit import fit
from skerry_cli.output import complain, note, say
from skerry_cli.tables import table

if TYPE_CHECKING:
    from skerry_regions.twin.figures import Figures

# Of the table: a heading, a field, its factor, how it is written.
COLUMNS: tuple[tuple[str, str, float, str], ...] = (
    ("TTFT MEAN S", "ttft_mean", 1, ".3f"),
    ("P50", "ttft_p50", 1, ".3f"),
    ("P95", "ttft_p95", 1, ".3f"),
    ("P99", "ttft_p99", 1, ".2f"),
    ("E2E MEAN S", "e2e_mean", 1, ".2f"),
    ("P99", "e2e_p99", 1, ".2f"),
    ("ITL P99 MS", "itl_p99", 1e3, ".1f"),
    ("CACHED %", "hit_share", 100, ".1f"),
    ("ABROAD %", "crossed_share", 100, ".1f"),
    ("BUSY %", "utilisation", 100, ".0f"),
    ("FAILED", "failed", 1, ".0f"),
    ("NODE H", "node_hours", 1, ".1f"),
    ("US$", "cost", 1, ".2f"),
    ("US$/1M OUT", "cost_per_million", 1, ".3f"),
)
HIGH_UTILISATION = 0.9


def register(commands: Commands) -> None:
    """Add `skerry simulate`."""
    parser = add_command(
        commands,
        "simulate",
        simulate,
        help="run a platform under a virtual clock: what would be if …",
        description="Simulate the platform of a scenario with the router's own code: regions,"
        " links, failures, autoscaling, prices; compare it with its differences (`what_if`).",
        example="skerry simulate examples/three-continents.yaml --seeds 5 --json figures.json\n"
        "  skerry simulate mine.yaml --fit --seconds 120",
    )
    parser.add_argument("scenario", type=Path, help="a YAML file: docs/simulate.md")
    parser.add_argument(
        "--fit",
        action="store_true",
        help="write the scenario instead, of the platform that runs, from its metrics and journal",
    )
    parser.add_argument(
        "--seconds",
        type=positive_seconds,
        default=60.0,
        help="of watching it (default: %(default)g)",
    )
    parser.add_argument(
        "--seeds", type=count, default=1, help="runs of each, with other numbers (default: 1)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")


def simulate(args: argparse.Namespace) -> int:
    """Run the command; return the process's exit status."""
    try:
        if args.fit:
            return fit(args)
        from skerry_cli.composition.routing.twin_kernels import load_twin_kernels
        from skerry_core.config import ConfigError
        from skerry_regions.twin.scenario import ScenarioError, load_scenario
        from skerry_regions.twin.traces import TraceError
    except ImportError as error:
        return complain(
            f"{error.name} is missing; install it with `pip install '.[platform]'` in Skerry's "
            "repository."
        )
    if args.json is not None and not args.json.absolute().parent.is_dir():
        return complain(f"--json {args.json}: there is no folder {args.json.parent}.")
    try:
        scenario = load_scenario(args.scenario)
        note("compiling or loading the simulator (minutes the first time)")
        show = _progress("compiling")
        load_twin_kernels(Home.from_environ(os.environ).cache, lambda _what, share: show(share))
        rows = _runs(scenario, args.scenario.parent, args.seeds)
    except (ScenarioError, TraceError, ConfigError, ValueError) as error:
        return complain(f"{error}.")
    except OSError as error:
        return complain(f"{error.filename}: {error.strerror}.")
    say(figures_table(rows))
    for name, each in rows:
        if max(run.utilisation for run in each) > HIGH_UTILISATION:
            note(f"{name}: nodes are busy over 90 % of the time; near that, waits are a guess")
    if args.json is not None:
        try:
            args.json.write_bytes(as_json(rows))
        except OSError as error:
            return complain(f"--json {args.json}: {error.strerror}.")
    return 0


def _runs(scenario: Any, base: Path, seeds: int) -> list[tuple[str, list[Figures]]]:
    """Return each variant's figures by seed; says how far it is."""
    from msgspec.structs import replace

    from skerry_regions.twin.compare import simulate as run_once
    from skerry_regions.twin.compare import variants

    rows = []
    for variant in variants(scenario):
        runs = []
        for seed in range(seeds):
            figures, seconds = run_once(
                replace(variant, seed=variant.seed + seed), base, _progress(variant.name)
            )
            runs.append(figures)
            pace = figures.requests / max(seconds, 1e-9)
            note(f"{variant.name}, seed {variant.seed + seed}: {figures.requests:,} requests in"
                 f" {seconds:.1f} s of a core ({pace:,.0f}/s)")  # fmt: skip
        rows.append((variant.name, runs))
    return rows


def _progress(name: str) -> Any:
    if not sys.stderr.isatty():
        return lambda _share: None
    return lambda share: print(f"\r{name}: {share:.0%} ", end="\r", file=sys.stderr)  # noqa: T201


def figures_table(rows: Sequence[tuple[str, Sequence[Figures]]]) -> str:
    """Return means under headings, with half of their 95 % intervals where there are seeds."""
    from skerry_regions.twin.figures import interval

    lines = []
    for name, runs in rows:
        line = [name]
        for _, field, factor, form in COLUMNS:
            mean, half = interval([getattr(run, field) * factor for run in runs])
            line.append(format(mean, form) + ("" if half is None else f" ±{half:{form}}"))
        lines.append(line)
    return table(["SCENARIO", *(f">{heading}" for heading, *_ in COLUMNS)], lines)


def as_json(rows: Sequence[tuple[str, Sequence[Figures]]]) -> bytes:
    """Return all figures of all runs."""
    import msgspec

    listed = [{"name": name, "runs": list(runs)} for name, runs in rows]
    return msgspec.json.format(msgspec.json.encode({"version": 1, "scenarios": listed}))
