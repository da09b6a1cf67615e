"""One cell of the day (`bench.routing.day`) for some hours of it, under one rule, on the twin."""

from __future__ import annotations

import csv
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
from msgspec.structs import replace

from bench.routing.sim.balancers import Balancers
from bench.routing.sim.day_load import BLOCK, CONTINENTS, DAY, HOUR, SWING, Load
from bench.routing.sim.play import load_kernels
from bench.routing.sim.settings import law
from skerry_regions.routing.fast.compiled import Floats
from skerry_regions.twin.kernel import state
from skerry_regions.twin.run import TwinRun
from skerry_regions.twin.scenario import (
    Failure,
    Routing,
    Scenario,
    SimulatedLink,
    SimulatedPool,
    SimulatedRegion,
    SimulatedTraffic,
    node_names,
)
from skerry_regions.twin.ways import ways_of
from skerry_regions.twin.world import Built

OURS, NEAREST, SKYWALKER = "Skerry", "nearest region", "SkyWalker"
RULES = {
    OURS: Routing(expected_output=211.0),
    NEAREST: Routing(placement="nearest"),
    SKYWALKER: Routing(report_seconds=0.1),
}
WARM = 900.0  # seconds that do not count
DEATHS, REPAIR = 1 / 50 / 86_400, 600.0  # of a node, per second; and how long it is away
OUTAGE = (14 * HOUR + 1200, 600.0, "fra")
GIGABYTE = 0.02  # US$
MOST_NODES = 10  # of a region in a cell
REQUESTS_OF_NODE = 2.2  # per second, about: how many nodes a cell begins with
RATIO, LEAST, BUCKETS = 1.02, 1e-3, 1000  # of a histogram of first tokens
MATRIX = Path(__file__).parents[2] / "data" / "ibm_vpc_inter_region_rtt_2024-03.csv"


@dataclass(frozen=True)
class Part:
    """What is run at once: one cell, from an hour of the day on."""

    load: Load
    cell: int
    hour: int
    hours: int = 1
    seed: int = 1


@dataclass(frozen=True)
class Played:
    """What it came to under one rule."""

    part: Part
    rule: str
    sums: dict[str, float]
    first_tokens: Floats  # histogram, in buckets of 2 %
    simulated: int  # requests, with those before that do not count
    seconds: float  # of processor time


def links() -> Iterator[SimulatedLink]:
    with MATRIX.open(newline="") as file:
        rtts = {row["from"]: row for row in csv.DictReader(file)}
    for a, b in itertools.combinations(CONTINENTS, 2):
        rtt = float(rtts[a.city][b.city]) / 1e3
        yield SimulatedLink(between=(a.name, b.name), rtt=rtt, bandwidth=1e8, gigabyte=GIGABYTE)


def scenario(part: Part, rule: str) -> Scenario:
    """A cell's platform. It begins with about as many nodes as it needs."""
    begin = part.hour * HOUR - WARM
    pools = []
    for each in CONTINENTS:
        day = 1 + SWING * math.cos(2 * math.pi * (begin / HOUR - each.noon) / DAY)
        needed = math.ceil(part.load.rate * each.share * day / REQUESTS_OF_NODE)
        pools.append(SimulatedPool(
            name="gpu", region=each.name, speed=law(8000), noise=0.05, node_hour=each.node_hour,
            replicas=min(max(needed, 1), MOST_NODES), max_replicas=MOST_NODES, min_replicas=1,
            start_seconds=120.0, target_ttft_seconds=1.0, target_itl_seconds=0.1,
            cache_tokens=1_000_000, kv_bytes_per_token=163_840.0,
        ))  # fmt: skip
    made = Scenario(
        seed=part.seed + 1000 * part.cell + part.hour,
        block_size=BLOCK,
        regions=[SimulatedRegion(name=each.name, edges=2, client_rtt=0.02) for each in CONTINENTS],
        pools=pools,
        links=list(links()),
        traffic=[SimulatedTraffic(regions={"iad": 1.0}, trace="given")],
        router=RULES[rule],
    )
    return replace(made, failures=list(failures(made, part, begin)))


def failures(made: Scenario, part: Part, begin: float) -> Iterator[Failure]:
    """What breaks in these hours, the same under each rule."""
    rng, end = Random(part.cell * 100 + part.hour), WARM + part.hours * HOUR
    for name in node_names(made):
        at, freezes = rng.expovariate(DEATHS), rng.random() < 0.5
        if at < end:
            yield Failure(at=at, seconds=REPAIR, node=name, freezes=freezes)
    at, seconds, region = OUTAGE
    if begin <= at < begin + end:
        yield Failure(at=at - begin, seconds=seconds, region=region)


def play(part: Part, rule: str) -> Played:
    """Run one cell."""
    load_kernels()
    begin = part.hour * HOUR - WARM
    requests = part.load.window(part.cell, begin, (part.hour + part.hours) * HOUR)
    given = scenario(part, rule)
    placement = state.BY_CALLER if rule == SKYWALKER else None
    built = Built(given, requests, ways_of(given, Path()), placement=placement)
    built.begin()
    run, bills = TwinRun(built), [0.0, math.nan]
    began = time.process_time()
    for number, at in enumerate((WARM, WARM + part.hours * HOUR)):
        run.at(at, partial(_note, bills, number, run))
    run.run(Balancers(run).place if rule == SKYWALKER else None)
    seconds = time.process_time() - began
    if math.isnan(bills[1]):  # its last request was over a little before the day was
        bills[1] = _bill(run, run.scaling.seconds)
    counts = requests.arrivals >= WARM
    table = built.world.requests
    done = counts & (np.asarray(table.phase) == state.DONE)
    served = np.asarray(built.world.nodes.region)[table.decode[done]]
    first = np.asarray(table.first_token)[done]
    buckets = np.log(np.maximum(first / LEAST, 1.0)) / math.log(RATIO)
    sums = {
        "requests": float(done.sum()),
        "failed": float(counts.sum() - done.sum()),
        "first": float(first.sum()),
        "whole": float(np.asarray(table.end)[done].sum()),
        "cached": float(np.nansum(np.asarray(table.hit)[done])),
        "prompt": float(requests.prompts[done].sum()),
        "output": float(requests.outputs[done].sum()),
        "abroad": float((served != requests.regions[done]).sum()),
        "cost": bills[1] - bills[0],
    }
    histogram = np.bincount(np.minimum(buckets.astype(np.int64), BUCKETS - 1), minlength=BUCKETS)
    return Played(part, rule, sums, histogram.astype(np.float64), len(requests), seconds)


def _note(bills: list[float], number: int, run: TwinRun, now: float) -> None:
    """Write down what all cost so far."""
    bills[number] = _bill(run, run.scaling.paid(now))


def _bill(run: TwinRun, paid: Floats) -> float:
    """What nodes cost that were paid for so many seconds, and the bytes that went."""
    prices = np.array([pool.node_hour for pool in run.built.pools])
    crossed = run.built.crossed * run.built.ways.prices / 1e9
    return float((paid * prices).sum() / HOUR + crossed.sum())
