"""A day of 10⁸ requests on three continents: what ours costs, by the nearest region and SkyWalker.

    python -m bench.day [--quick] [--jobs N] [--check] [--json FILE]

On the product's twin (`skerry_regions.twin`): Washington, Frankfurt and Tokyo with the round trips
that IBM measured (`bench/data`), two edges in each, nodes that the control plane's autoscaler
starts (two minutes each) and stops, prices by region and by byte, a node in 50 that dies each day,
and ten minutes in which Frankfurt is away. Requests are those of `bench/sim/day_load.py`.

The day is cut into cells of sessions, each with its own nodes, and strata of an hour. Of each hour
some cells are run, with a quarter before that does not count, under each rule on the same requests.
Intervals (95 %) are those of the sample (`bench/sim/sampling.py`): they say nothing of the model.
`--check` runs a small day whole, cell by cell without a break, and counts how often the intervals
of 20 samples of its hours have what that came to.

The rules: ours (placement by cost), the nearest region (fewest streams there), and SkyWalker's, as
published (`bench/sim/balancers.py`; its probes each 100 ms, reports to ours each 250 ms).
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from random import Random
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measuring.run import Run, parser
from bench.sim.cells import LEAST, NEAREST, OURS, RATIO, RULES, SKYWALKER, Part, Played, play
from bench.sim.day_load import DAY, Load
from bench.sim.play import load_kernels
from bench.sim.sampling import Estimate, estimate, quantile

REQUESTS, SECONDS = 10**8, 86_400  # of the day
CELLS, SAMPLED = 64, 2  # and how many of each hour are run
SMALL = Load(rate=5.0, seed=2)  # of a cell of the small day
SMALL_CELLS, SMALL_SAMPLED, DRAWS = 6, 3, 20


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
    strata = by_hour([each for each in played if each.rule == rule])
    found = {}
    for figure in FIGURES:
        units = [[each.sums for each in hour] for hour in strata]
        below = () if figure.below is None else (figure.below,)
        given = estimate(units, cells, (figure.above,), below)
        ends = (figure.factor * end for end in (given.value, given.low, given.high))
        found[figure.name] = Estimate(*ends)
    for share in (0.5, 0.95, 0.99):
        places = quantile([[each.first_tokens for each in hour] for hour in strata], share)
        found[f"first token, p{100 * share:g}, s"] = Estimate(*(LEAST * RATIO**p for p in places))
    return found


def by_hour(played: Sequence[Played]) -> list[list[Played]]:
    hours = sorted({each.part.hour for each in played})
    return [[each for each in played if each.part.hour == hour] for hour in hours]


def ratios(played: Sequence[Played], peer: str, cells: int) -> dict[str, Estimate]:
    """Ours by another rule's, cell by cell."""
    pairs = [
        [{f"{name} {rule}": each.sums[name] for rule, each in ((OURS, a), (peer, b))
          for name in a.sums} for a in hour if a.rule == OURS
         for b in hour if b.rule == peer and b.part == a.part]
        for hour in by_hour(played)
    ]  # fmt: skip
    found = {}
    for figure in FIGURES[:4]:
        above, below = [f"{figure.above} {OURS}"], [f"{figure.above} {peer}"]
        if figure.below is not None:
            above.append(f"{figure.below} {peer}")
            below.append(f"{figure.below} {OURS}")
        found[figure.name] = estimate(pairs, cells, above, below)
    return found


def run_all(
    parts: Sequence[Part], rules: Sequence[str], jobs: int, console: Console
) -> list[Played]:
    """Every part under every rule; in any order, the longest rule first."""
    asked = [(part, rule) for rule in reversed(rules) for part in parts]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool, console.status("") as status:
        waiting = [pool.submit(play, part, rule) for part, rule in asked]
        found = []
        for each in as_completed(waiting):
            found.append(each.result())
            status.update(f"{len(found)} of {len(asked)}")
    return sorted(found, key=lambda each: (each.rule, each.part.hour, each.part.cell))


def sampled(load: Load, cells: int, count: int) -> Iterator[Part]:
    """Some cells of each hour."""
    rng = Random(load.seed)
    for hour in range(DAY):
        for cell in sorted(rng.sample(range(cells), count)):
            yield Part(load, cell, hour)


def day(given: argparse.Namespace, console: Console) -> dict[str, Any]:
    """The comparison."""
    cells = CELLS
    load = Load(rate=REQUESTS / SECONDS / cells, seed=1)
    parts = list(sampled(load, cells, SAMPLED))
    if given.quick:
        parts = [part for part in parts if part.hour in (4, 14)]
    played = run_all(parts, list(RULES), given.jobs, console)
    table = Table(title="a day of 10⁸ requests, and 95 % intervals of the sample")
    rows = {rule: of_rule(played, rule, cells) for rule in RULES}
    rows |= {f"ours / {peer}": ratios(played, peer, cells) for peer in (NEAREST, SKYWALKER)}
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
    """How often the intervals of samples of hours have what the whole small day came to."""
    whole = run_all(
        [Part(SMALL, cell, 0, DAY) for cell in range(SMALL_CELLS)], [OURS], given.jobs, console
    )
    truth = of_rule(whole, OURS, SMALL_CELLS)
    hours = [Part(SMALL, cell, hour) for cell in range(SMALL_CELLS) for hour in range(DAY)]
    played = run_all(hours, [OURS], given.jobs, console)
    rng, covered = Random(3), Counter[str]()
    for _ in range(DRAWS):
        drawn = [each for hour in by_hour(played) for each in rng.sample(hour, SMALL_SAMPLED)]
        found = of_rule(drawn, OURS, SMALL_CELLS)
        covered.update(figure for figure in found if found[figure].covers(truth[figure].value))
    table = Table(title=f"a whole day of {sum(each.simulated for each in whole):,} requests")
    for column in ("figure", "whole", "all its hours", f"intervals of {DRAWS} that have it"):
        table.add_column(column, justify="right")
    parts = of_rule(played, OURS, SMALL_CELLS)
    for figure, each in truth.items():
        table.add_row(
            figure, f"{each.value:.4g}", f"{parts[figure].value:.4g}", str(covered[figure])
        )
    console.print(table)
    return {"covered": dict(covered), "whole": {key: each.value for key, each in truth.items()}}


def main() -> int:
    made = parser(__doc__, quick="two hours of the day")
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
