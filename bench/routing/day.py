"""A day of 10⁸ requests on three continents: what ours costs, by the nearest region and SkyWalker.

    python -m bench.routing.day [--quick] [--jobs N] [--check] [--json FILE]

On the product's twin (`skerry_regions.twin`): Washington, Frankfurt and Tokyo with the round trips
that IBM measured (`bench/data`), two edges in each, nodes that the control plane's autoscaler
starts (two minutes each) and stops, prices by region and by byte, a node in 50 that dies each day,
and ten minutes in which Frankfurt is away. Requests are those of `bench/routing/sim/day_load.py`.

The day is cut into cells of sessions, each with its own nodes. Some cells are run, each for the
whole day without a break, after a quarter of an hour that does not count, under each rule on the
same requests. Intervals (95 %) are those of the sample (`bench/routing/sim/sampling.py`): they say
nothing of the model. `--check` runs all cells of a small day, and counts how often the intervals of
samples of them have what that came to.

The rules: ours (placement by cost), the nearest region (fewest streams there), and SkyWalker's, as
published (`bench/routing/sim/balancers.py`; its probes each 100 ms, reports to ours each 250 ms).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measuring.run import Run, parser
from bench.routing.sim.cells import (
    LEAST,
    NEAREST,
    OURS,
    RATIO,
    RULES,
    SKYWALKER,
    Part,
    Played,
    play,
)
from bench.routing.sim.day_load import DAY, Load
from bench.routing.sim.play import load_kernels
from bench.routing.sim.sampling import Estimate, estimate, quantile

REQUESTS, SECONDS = 10**8, 86_400  # of the day
CELLS, SAMPLED = 64, 8  # and how many are run
SMALL = Load(rate=1.5, seed=2)  # of a cell of the small day
SMALL_CELLS, SMALL_SAMPLED = 24, 8
DRAWS, MANY_DRAWS = 20, 2000


@dataclass(frozen=True)
class Figure:
    """A column of the table."""

    name: str
    above: str
    below: str | None
    factor: float = 1.0


FIGURES = (
    Figure("first token, mean, s", "first", "requests"),
    Figure("whole request, mean, s", "whole", "requests"),
    Figure("US$ a day", "cost", None),
    Figure("US$ per 10⁶ tokens out", "cost", "output", 1e6),
    Figure("cached, %", "cached", "prompt", 100),
    Figure("abroad, %", "abroad", "requests", 100),
)


def of_rule(played: Sequence[Played], rule: str, cells: int) -> dict[str, Estimate]:
    """Each figure of a rule, of the whole day."""
    own = [each for each in played if each.rule == rule]
    found = {}
    for figure in FIGURES:
        below = () if figure.below is None else (figure.below,)
        given = estimate([each.sums for each in own], cells, (figure.above,), below)
        ends = (figure.factor * end for end in (given.value, given.low, given.high))
        found[figure.name] = Estimate(*ends)
    for share in (0.5, 0.95, 0.99):
        places = quantile([each.first_tokens for each in own], cells, share)
        ends = (LEAST * RATIO**place for place in (places.value, places.low, places.high))
        found[f"first token, p{100 * share:g}, s"] = Estimate(*ends)
    return found


def ratios(played: Sequence[Played], peer: str, cells: int) -> dict[str, Estimate]:
    """Ours by another rule's, cell by cell."""
    sums = {(each.part, each.rule): each.sums for each in played}
    pairs = [
        {f"{name} {rule}": sums[part, rule][name] for rule in (OURS, peer) for name in own}
        for (part, rule_of), own in sums.items() if rule_of == OURS
    ]  # fmt: skip
    found = {}
    for figure in FIGURES[:4]:
        above, below = [f"{figure.above} {OURS}"], [f"{figure.above} {peer}"]
        if figure.below is not None:
            above.append(f"{figure.below} {peer}")
            below.append(f"{figure.below} {OURS}")
        found[figure.name] = estimate(pairs, cells, above, below)
    return found


def table_of(played: Sequence[Played], cells: int) -> dict[str, dict[str, Estimate]]:
    """All that the table has, by row of rules and by figure."""
    rows = {rule: of_rule(played, rule, cells) for rule in RULES}
    return rows | {f"ours / {peer}": ratios(played, peer, cells) for peer in (NEAREST, SKYWALKER)}


def run_all(
    parts: Sequence[Part], rules: Sequence[str], jobs: int, console: Console
) -> list[Played]:
    """Every part under every rule, the slowest rule first."""
    asked = [(part, rule) for rule in reversed(rules) for part in parts]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, console.status("") as status:
        waiting = [pool.submit(play, part, rule) for part, rule in asked]
        found = []
        for each in as_completed(waiting):
            found.append(each.result())
            status.update(f"{len(found)} of {len(asked)}")
    return sorted(found, key=lambda each: (each.rule, each.part.cell))


def day(given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The comparison."""
    load = Load(rate=REQUESTS / SECONDS / CELLS, seed=1)
    taken = sorted(Random(load.seed).sample(range(CELLS), SAMPLED))
    parts = [Part(load, cell, 0, DAY) for cell in taken]
    if given.quick:
        parts = [Part(load, cell, 14, 1) for cell in taken]
    played = run_all(parts, list(RULES), given.jobs, console)
    rows = table_of(played, CELLS)
    table = Table(title="a day of 10⁸ requests, and 95 % intervals of the sample")
    table.add_column("figure")
    for name in rows:
        table.add_column(name, justify="right")
    for figure in rows[OURS]:
        table.add_row(figure, *(str(each.get(figure, "")) for each in rows.values()))
    console.print(table)
    speeds = {}
    for rule in RULES:
        own = [each for each in played if each.rule == rule]
        simulated, seconds = sum(each.simulated for each in own), sum(each.seconds for each in own)
        speeds[rule] = simulated / seconds
        failed = sum(each.sums["failed"] for each in own)
        asked = failed + sum(each.sums["requests"] for each in own)
        console.print(
            f"{rule}: {simulated:,} requests at {speeds[rule]:,.0f} per core-second (10⁸ in"
            f" {REQUESTS / speeds[rule] / 120:.1f} minutes of two cores); {failed:.0f} of"
            f" {asked:,.0f} broke off"
        )
    written = {name: {key: vars(each) for key, each in row.items()} for name, row in rows.items()}
    return {"figures": written, "requests per core-second": speeds}


def check(given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """How often the intervals of samples of a small day's cells have what all of them came to."""
    parts = [Part(SMALL, cell, 0, DAY) for cell in range(SMALL_CELLS)]
    played = run_all(parts, list(RULES), given.jobs, console)
    truth, rng = table_of(played, SMALL_CELLS), Random(3)
    covered = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    widths = defaultdict[tuple[str, str], float](float)
    for draw in range(MANY_DRAWS):
        drawn = rng.sample(range(SMALL_CELLS), SMALL_SAMPLED)
        found = table_of([each for each in played if each.part.cell in drawn], SMALL_CELLS)
        for row, figures in found.items():
            for figure, each in figures.items():
                is_covered = each.covers(truth[row][figure].value)
                covered[0][row, figure] += is_covered and draw < DRAWS
                covered[1][row, figure] += is_covered
                widths[row, figure] += (each.high - each.low) / 2 / (each.value or 1) / MANY_DRAWS
    simulated = sum(each.simulated for each in played if each.rule == OURS)
    table = Table(
        title=f"a whole day of {simulated:,} requests in {SMALL_CELLS} cells, and intervals of"
        f" {SMALL_SAMPLED} of them that have it"
    )
    for column in (
        "of", "figure", "whole", "half an interval", f"of {DRAWS}", f"of {MANY_DRAWS:,}",
    ):  # fmt: skip
        table.add_column(column, justify="right")
    for (row, figure), count in covered[0].items():
        table.add_row(
            row, figure, f"{truth[row][figure].value:.4g}", f"{widths[row, figure]:.1%}",
            str(count), f"{covered[1][row, figure] / MANY_DRAWS:.1%}",
        )  # fmt: skip
    console.print(table)
    names = [f"{row}: {figure}" for row, figure in covered[0]]
    return {
        "covered": dict(zip(names, covered[0].values(), strict=True)),
        "of many": {
            name: count / MANY_DRAWS for name, count in zip(names, covered[1].values(), strict=True)
        },
    }


def main() -> int:
    made = parser(__doc__, quick="one hour of the day")
    made.add_argument("--jobs", type=int, default=2, help="processes side by side")
    made.add_argument("--check", action="store_true", help="check the sampling instead")
    given = made.parse_args()
    bench = Run(given, threads=given.jobs, min_width=150)
    load_kernels()
    found = (check if given.check else day)(given, bench.console)
    bench.write([], **found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
