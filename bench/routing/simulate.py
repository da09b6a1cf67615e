"""Routing rules of other systems and ours: who waits how long for a first token, on equal nodes.

    python -m bench.routing.simulate [--quick] [--seeds N] [--jobs N] [--only TEXT] [--json FILE]
                             [--peers FILE ...]

Runs on the product's twin (`skerry_regions.twin`): a virtual clock, no GPU, no model, the same
result on any machine. All rules get the same requests (Mooncake's traces with their 3 s ticks
spread by seed, and regimes where a rule may do better than its cost), the same reports, four times
a second, and the same index of who holds which blocks (`sim/fleet.py`); what a system counts
itself, it counts without delay. They are the rules as published (`sim/rules.py`, `peers.py`,
`preble.py`), not the systems. Rules that reckon in seconds know nodes' speeds; ours starts with all
three times too slow and learns (`speeds known`: as after some minutes of service).

Each rule runs as it is, and (`+ split`) with the freedom to decode on another hybrid node, and to
prefill short prompts on a node for decoding; ours (`published choices`) also without the freedoms
to split and to fetch, with known speeds. At the end, several edges in front of the same nodes by
one: `after`, they report to each other what they send where, 5 or 20 ms later, and count the
arrivals of all, as the product does; `alone`, they do not. Ratios are ours by the best rule of
another system, with or without freedom, seed by seed, with the 95 % interval (Student's t).
`hit_share`: prompt tokens found cached; TTFT includes queue, prefill, KV hand-over and the network.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.measuring import machine, stats
from bench.routing.sim.herd import edges_rows
from bench.routing.sim.peers import RULES
from bench.routing.sim.play import KNOWN, NARROW, OURS, OWN, SPLIT, load_kernels, play
from bench.routing.sim.settings import Setting, mooncakes, others
from skerry_regions.twin.figures import Figures, interval

SPEEDS = (6500, 10_000)  # prompt tokens per second of a node: the lower, the higher the load
METRICS = ("ttft_mean", "ttft_p50", "ttft_p95", "ttft_p99", "e2e_mean")
COLUMNS = ("hit_share", *METRICS, "itl_p99")


@dataclass(frozen=True)
class Row:
    """One rule in one setting, a figure per seed."""

    setting: str
    policy: str
    runs: list[Figures]

    def mean(self, metric: str) -> float:
        return fmean(getattr(run, metric) for run in self.runs)


def policies(setting: Setting) -> list[str]:
    """All by name; ours last."""
    own = [KNOWN, OURS] if setting.prefill else [NARROW, KNOWN, OURS]
    return [*RULES, *(name + SPLIT for name in RULES), *own]


Known = dict[tuple[str, str], list[Figures]]
"""By setting and rule: of each seed."""


def begin_all(
    pool: Executor, settings: Sequence[Setting], known: Known, seeds: int
) -> dict[tuple[str, str], list[Future[Figures]]]:
    """Begin all runs but for those that are known; those of one trace come one after another."""
    runs: dict[tuple[str, str], list[Future[Figures]]] = defaultdict(list)
    for setting in settings:
        for seed in range(seeds):
            for policy in policies(setting):
                before = known.get((setting.name, policy), [])
                if seed < len(before):
                    future = Future[Figures]()
                    future.set_result(before[seed])
                else:
                    future = pool.submit(play, setting, policy, seed)
                runs[setting.name, policy].append(future)
    return runs


def known_of(files: Sequence[Path]) -> Known:
    """Return what reports of before say of other systems: our price is not in it."""
    found: Known = {}
    for file in files:
        rows = msgspec.convert(msgspec.json.decode(file.read_bytes())["rows"], list[Row])
        found |= {(row.setting, row.policy): row.runs for row in rows if row.policy not in OWN}
    return found


def best_published(rows: Sequence[Row], metric: str) -> Row:
    return min(
        (row for row in rows if row.policy not in OWN),
        key=lambda row: row.mean(metric),
    )


def ratio(rows: Sequence[Row], metric: str, ours: str = OURS) -> tuple[float, float, str]:
    """Our figure by the best rule's: mean over seeds, half of the interval, and whose."""
    own, peer = next(row for row in rows if row.policy == ours), best_published(rows, metric)
    each = [
        stats.ratio(getattr(a, metric), getattr(b, metric))
        for a, b in zip(own.runs, peer.runs, strict=True)
    ]
    mean, half = interval(each)
    return mean, half or 0.0, peer.policy


def table(title: str, rows: Sequence[Row]) -> Table:
    result = Table(title=title)
    result.add_column("policy", no_wrap=True)
    for column in COLUMNS:
        result.add_column(column, justify="right")
    for row in sorted(rows, key=lambda row: row.mean("ttft_mean")):
        cells = []
        for column in COLUMNS:
            mean, half = interval([getattr(run, column) for run in row.runs])
            cells.append(f"{mean:.3f}" + ("" if half is None else f" ±{half:.3f}"))
        result.add_row(row.policy, *cells, style="bold" if row.policy == OURS else None)
    return result


def edges_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Several edges by one."""
    result = Table(title="mean first token of several edges by that of one")
    for column in rows[0]:
        result.add_column(column)
    for row in rows:
        result.add_row(*(f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()))
    return result


def chosen(quick: bool, only: str) -> Iterator[Setting]:
    settings = [*mooncakes((8000,) if quick else SPEEDS), *others()]
    for setting in settings[:1] if quick and not only else settings:
        if only in setting.name:
            yield setting


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one trace at one load")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="settings whose name has it; or `edges`"
    )
    parser.add_argument(
        "--peers", type=Path, nargs="+", default=[], metavar="FILE",
        help="reports of this twin: take other systems' figures from there",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(argv)
    console = Console()
    console = Console(width=max(console.width, 150))  # also where the output is piped
    load_kernels()
    known = known_of(options.peers)
    all_rows: list[Row] = []
    ratios: dict[str, dict[str, Any]] = {}
    settings = list(chosen(options.quick, options.only))
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), load_kernels) as pool:
        runs = begin_all(pool, settings, known, options.seeds)
        for setting in settings:
            rows = [
                Row(setting.name, policy, [each.result() for each in runs[setting.name, policy]])
                for policy in policies(setting)
            ]
            console.print(table(setting.name, rows))
            verdict = {}
            for ours in (each for each in policies(setting) if each in OWN):
                for metric in METRICS:
                    mean, half, whose = verdict[f"{ours}, {metric}"] = ratio(rows, metric, ours)
                    console.print(f"{ours}: {metric} {mean:.3f} ± {half:.3f} of {whose}'s")
            console.print()
            all_rows += rows
            ratios[setting.name] = verdict
            write(options.json, all_rows, ratios, [])  # so far: `--peers` goes on from there
        herds = []
        if options.only in "edges":
            herds = list(edges_rows(options.quick, options.seeds, pool))
    if herds:
        console.print(edges_table(herds))
    write(options.json, all_rows, ratios, herds)


def write(
    file: Path | None,
    rows: Sequence[Row],
    ratios: dict[str, dict[str, Any]],
    herds: Sequence[dict[str, Any]],
) -> None:
    """Write the report, if there is a file for it."""
    report: dict[str, Any] = {
        "machine": machine.describe(),
        "limits": {"virtual time": 1.0},
        "rows": msgspec.to_builtins(rows),
        "ratios": ratios,
        "edges": herds,
    }
    stats.write(file, report)


if __name__ == "__main__":
    main()
