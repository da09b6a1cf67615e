"""How many clients geo DNS sends to a region that is not their best one.

    python -m bench.routing.sim.dns_regret [--quick] [--json FILE]

The world: IBM's published inter-region round trips (`bench/data`), ten cities. A client in each
city is sent to the best of every choice of three among the nine other cities, by `rank` as the
server calls it. The choice counts as wrong when its published round trip is more than 10 ms above
the best one's. "by distance" has coordinates only.

Published are averages, so single samples are made here: each is the average times a log-normal of
mean 1 and the given sigma, and one in 50 is three times as long. What is held out is the truth
itself: regions measure in one direction (rows of the matrix by region), and clients are judged by
the other (rows by client), which was measured apart and differs by up to 9 ms. The weather of a
single hour, and how well a city's network stands for its clients, are not in this figure.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from rich.console import Console
from rich.table import Table

from bench.measuring import machine, stats
from skerry_regions.geo.measured_rtt import MeasuredRtt
from skerry_regions.geo.ranking import ClientOrigin, RegionCandidate, nearest, rank, up
from skerry_regions.topology.spec import TopologyRegion

MATRIX = Path(__file__).parents[2] / "data" / "ibm_vpc_inter_region_rtt_2024-03.csv"
AIRPORTS = {
    "Dallas": "DFW", "Toronto": "YYZ", "Washington DC": "IAD", "Frankfurt": "FRA", "London": "LHR",
    "Madrid": "MAD", "Osaka": "KIX", "Sydney": "SYD", "Tokyo": "HND", "Sao Paulo": "GRU",
}  # fmt: skip
REGIONS_OFFERED = 3
TOLERANCE = 0.010  # seconds
SAMPLES = (20, 100)  # per pair of cities; below 20 distance counts
SIGMAS = (0.1, 0.25, 0.5)
OUTLIERS, OUTLIER = 0.02, 3.0
SEEDS = 20

Rtts = Mapping[tuple[str, str], float]  # seconds, by (from, to)


@dataclass(frozen=True)
class Row:
    """One way to choose; shares over all choices of all seeds."""

    way: str
    samples: int
    sigma: float
    wrong: float  # share of clients
    worst_seed: float  # the same of the worst seed
    mean_regret: float  # seconds lost by those who were sent wrong
    p99_loss: float  # seconds lost, over all


def read_matrix() -> Rtts:
    with MATRIX.open(newline="", encoding="utf-8") as file:
        return {
            (row["from"], city): float(row[city]) / 1e3
            for row in csv.DictReader(file)
            for city in AIRPORTS
        }


def measured(truth: Rtts, samples: int, sigma: float, rng: Random) -> MeasuredRtt:
    """What regions learn of cities: from their own end, with noise."""
    learnt = MeasuredRtt()
    for region, city in itertools.permutations(AIRPORTS, 2):
        for _ in range(samples):
            noise = rng.lognormvariate(-sigma * sigma / 2, sigma)
            noise *= OUTLIER if rng.random() < OUTLIERS else 1.0
            learnt.add(city, region, truth[region, city] * noise)
    return learnt


def losses(truth: Rtts, learnt: MeasuredRtt) -> list[float]:
    """Seconds lost by the client of every choice against its best region."""
    regions = {name: TopologyRegion(name=name, iata=iata) for name, iata in AIRPORTS.items()}
    lost: list[float] = []
    for city in AIRPORTS:
        client = ClientOrigin(location=regions[city].location, rtt=learnt.of(city))
        for offered in itertools.combinations(sorted(AIRPORTS.keys() - {city}), REGIONS_OFFERED):
            candidates = [RegionCandidate(regions[name]) for name in offered]
            chosen = rank(candidates, client, (up, nearest))[0]
            best = min(truth[city, name] for name in offered)
            lost.append(truth[city, chosen] - best)
    return lost


def row(way: str, samples: int, sigma: float, runs: list[list[float]]) -> Row:
    shares = [sum(loss > TOLERANCE for loss in run) / len(run) for run in runs]
    every = sorted(loss for run in runs for loss in run)
    wrong = [loss for loss in every if loss > TOLERANCE]
    return Row(
        way,
        samples,
        sigma,
        statistics.fmean(shares),
        max(shares),
        statistics.fmean(wrong) if wrong else 0.0,
        stats.percentile(every, 0.99),
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two seeds instead of twenty")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(argv)
    truth = read_matrix()
    rows = [row("by distance", 0, 0.0, [losses(truth, MeasuredRtt())])]
    for samples, sigma in itertools.product(SAMPLES, SIGMAS):
        seeds = range(2 if options.quick else SEEDS)
        runs = [losses(truth, measured(truth, samples, sigma, Random(seed))) for seed in seeds]
        rows.append(row("measured", samples, sigma, runs))
    headings = ("", "samples", "sigma", "wrong", "worst seed", "mean loss of those", "p99 loss")
    table = Table(*headings, title="clients sent to a region more than 10 ms from their best")
    for each in rows:
        figures = f"{each.wrong:.2%}", f"{each.worst_seed:.2%}"
        times = f"{each.mean_regret * 1e3:.0f} ms", f"{each.p99_loss * 1e3:.0f} ms"
        table.add_row(each.way, str(each.samples), f"{each.sigma:g}", *figures, *times)
    Console(width=100).print(table)
    report = {"machine": machine.describe(), "rows": [asdict(each) for each in rows]}
    stats.write(options.json, report)


if __name__ == "__main__":
    main()
