"""Whether the twin predicts a fleet: fit on one run of real nodes, compare with others.

    python -m bench.routing.twin [--quick] [--first SEED] [--seeds N] [--json FILE]

The fleet: `skerry up --topology` with two regions 40 ms apart, emulated: eight nodes of the toy
model that sleep by a law in the first, two nodes of one thread that compute in the second; an edge
in each. `skerry simulate --fit` watches run A and writes the scenario, from the nodes' counters and
the usage journal alone. Runs B are held out: another load, another split of it between regions,
other seeds, under each of three placements; the same requests go through the twin. `--first` says
which seeds: 10 to 14 (the default) were met as the fit was made; 9001 and up never. Errors are of
means over a run's requests, by placement. Policies are in order where the twin says of a pair of
them what the fleet does, of those that differ by over two standard errors there.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from random import Random

import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.measuring.load import StreamTimes, stream
from bench.measuring.replay import replay
from bench.measuring.run import Run, parser
from bench.routing.sim.play import load_kernels
from bench.subjects.models import MODEL, default_model
from bench.subjects.platforms import Platform, of_topology, sleeping_nodes
from skerry_regions.twin.figures import figures
from skerry_regions.twin.run import TwinRun
from skerry_regions.twin.scenario import Scenario, load_scenario
from skerry_regions.twin.ways import ways_of
from skerry_regions.twin.workload import Workload, names_of
from skerry_regions.twin.world import Built

LAW = (0.030, 4e-4, 1e-7, 1e-3, 1e-6)  # step, prompt token, pair, stream, context token
KV_BYTES = {"fra": 16.0, "iad": 23_040.0}  # of a token
RTT = 0.040
BLOCK = 64  # tokens
POLICIES = ("nearest", "cost", "round-robin")  # fitted under the first: both pools compute
MET = 10  # the first seed of runs B that earlier versions met
FITTED, WARM_UP = 1, 1000  # other seeds
PREFIXES, PREFIX = 6, 256  # shared prefixes, and their tokens


@dataclass(frozen=True)
class Asked:
    """One request."""

    at: float
    region: str
    prompt: list[int]
    output: int


@dataclass(frozen=True)
class Outcome:
    """One held-out run; means in seconds."""

    policy: str
    seed: int
    ttft: float
    e2e: float
    predicted_ttft: float
    predicted_e2e: float


def requests(seed: int, rate: float, seconds: float, here: float) -> list[Asked]:
    """Poisson arrivals, of which a share comes to the first region."""
    rng, now, made = Random(seed), 0.0, []
    shared = [[rng.randrange(1000, 40_000) for _ in range(PREFIX)] for _ in range(PREFIXES)]
    while (now := now + rng.expovariate(rate)) < seconds:
        own = [rng.randrange(1000, 40_000) for _ in range(rng.randrange(20, 300))]
        region = "fra" if rng.random() < here else "iad"
        made.append(Asked(now, region, rng.choice(shared) + own, rng.randrange(4, 40)))
    return made


@contextmanager
def fleet(policy: str) -> Generator[Platform]:
    """Ten nodes in two regions, running."""
    pools = [
        {"name": "sleep", "region": "fra", "runner": "toy", "replicas": 8, "kv_blocks": 256},
        {"name": "numba", "region": "iad", "runner": "numba", "replicas": 2, "threads": 1},
    ]
    topology = {
        "regions": [{"name": name, "iata": name.upper()} for name in KV_BYTES],
        "pools": [{"role": "hybrid", "model": MODEL, **pool} for pool in pools],
        "edges": [
            {"name": f"edge-{name}", "region": name, "placement": policy} for name in KV_BYTES
        ],
        "links": [{"between": list(KV_BYTES), "rtt": RTT}],
        "emulate": {"rtt": "links"},
    }
    with sleeping_nodes(LAW), of_topology(topology) as made:
        yield made


def run(on: Platform, asked: Sequence[Asked]) -> list[StreamTimes]:
    urls = {each["region"]: on.route("v1/completions", each["url"]) for each in on.status["edges"]}

    async def ask(one: Asked) -> StreamTimes:
        # Some tokens have no text; with their log-probabilities each comes in an event of its own.
        body = {
            "model": MODEL, "prompt": one.prompt, "max_tokens": one.output, "temperature": 0,
            "ignore_eos": True, "stream": True, "logprobs": 0,
        }  # fmt: skip
        return await stream(urls[one.region], on.token, body, content=b'"token_logprobs":[')

    return asyncio.run(replay(asked, ask))


def fit(on: Platform, asked: Sequence[Asked], seconds: float) -> Scenario:
    """Have the command watch a run, and read what it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.yaml"
        command = [sys.executable, "-m", "skerry", "simulate", str(file), "--fit"]
        watching = subprocess.Popen(
            [*command, "--seconds", f"{seconds:g}"],
            env={**os.environ, "SKERRY_HOME": str(on.home)},
            stdout=subprocess.DEVNULL,
        )
        run(on, asked)
        if watching.wait():
            raise RuntimeError("skerry simulate --fit failed")
        found = load_scenario(file)
    pools = [
        msgspec.structs.replace(pool, kv_bytes_per_token=KV_BYTES[pool.region])
        for pool in found.pools
    ]
    return msgspec.structs.replace(found, pools=pools)


def workload(asked: Sequence[Asked], regions: Sequence[str]) -> Workload:
    """The same requests, as the twin has them."""
    numbers: dict[tuple[int, ...], int] = {}
    names: list[int] = []
    counts = []
    for each in asked:
        count = len(each.prompt) // BLOCK
        chain = [tuple(each.prompt[: BLOCK * (n + 1)]) for n in range(count)]
        names += [numbers.setdefault(prefix, len(numbers)) for prefix in chain]
        counts.append(count)
    blocks = np.array(counts, np.int64)
    return Workload(
        arrivals=np.array([each.at for each in asked]),
        prompts=np.array([len(each.prompt) for each in asked], np.int64),
        outputs=np.array([each.output for each in asked], np.int64),
        regions=np.array([regions.index(each.region) for each in asked], np.int64),
        firsts=np.concatenate([[0], np.cumsum(blocks)])[:-1].astype(np.int64),
        blocks=blocks,
        names=names_of(np.array(names, np.uint64)),
    )


def predict(scenario: Scenario, asked: Sequence[Asked], policy: str) -> tuple[float, float]:
    """Means of the first token and of whole requests, as the twin has them."""
    placed = msgspec.structs.replace(scenario.router, placement=policy)
    given = msgspec.structs.replace(scenario, router=placed)
    built = Built(given, workload(asked, given.names), ways_of(given, Path()))
    built.begin()
    twin = TwinRun(built)
    twin.run()
    found = figures(twin)
    return found.ttft_mean, found.e2e_mean


def outcomes(
    console: Console, seeds: Sequence[int], seconds: float, rate: float
) -> Iterator[Outcome]:
    """Fit, then compare run by run."""
    scenario: Scenario | None = None
    for policy in POLICIES:
        with fleet(policy) as on:
            run(on, requests(WARM_UP, rate, 10.0, 0.8))  # edges learn how fast nodes are
            if scenario is None:
                scenario = fit(on, requests(FITTED, rate, 3 * seconds, 0.8), 3 * seconds)
                console.print(json.dumps(msgspec.to_builtins(scenario.pools), indent=None))
                console.print([(each.name, each.edge_seconds) for each in scenario.regions])
            for seed in seeds:
                asked = requests(seed, 1.4 * rate, seconds, 0.9)
                times = run(on, asked)
                ttft = statistics.fmean(each.ttft for each in times)
                e2e = statistics.fmean(each.events[-1] for each in times)
                yield Outcome(policy, seed, ttft, e2e, *predict(scenario, asked, policy))


def errors(found: Sequence[Outcome], policy: str) -> tuple[float, float]:
    """Of the means over all runs, in per cent: first token, whole request."""
    own = [each for each in found if each.policy == policy]
    pairs = (
        ([each.predicted_ttft for each in own], [each.ttft for each in own]),
        ([each.predicted_e2e for each in own], [each.e2e for each in own]),
    )
    first, whole = (100 * (statistics.fmean(a) / statistics.fmean(b) - 1) for a, b in pairs)
    return first, whole


def order(found: Sequence[Outcome]) -> tuple[int, int]:
    """Pairs of policies whose order is right, and those that differ by two standard errors."""
    right = total = 0
    for real, predicted in (("ttft", "predicted_ttft"), ("e2e", "predicted_e2e")):
        for a, b in itertools.combinations(POLICIES, 2):
            differences = [
                (getattr(one, real) - getattr(other, real),
                 getattr(one, predicted) - getattr(other, predicted))
                for one, other in itertools.product(found, found)
                if (one.policy, other.policy) == (a, b) and one.seed == other.seed
            ]  # fmt: skip
            seen = [each for each, _ in differences]
            if len(seen) < 2:
                continue
            error = statistics.stdev(seen) / len(seen) ** 0.5
            if abs(statistics.fmean(seen)) > 2 * error:
                total += 1
                said = statistics.fmean(each for _, each in differences)
                right += (said > 0) == (statistics.fmean(seen) > 0)
    return right, total


def main() -> int:
    made = parser(__doc__, quick="2 seeds")
    made.add_argument("--first", type=int, default=MET, metavar="SEED", help="of runs B")
    made.add_argument("--seeds", type=int, default=5, metavar="N", help="how many, from there on")
    given = made.parse_args()
    bench = Run(given, threads=2, min_width=120)
    default_model()
    load_kernels()
    seeds = range(given.first, given.first + (2 if bench.is_quick else given.seeds))
    if {FITTED, WARM_UP} & set(seeds):
        made.error(f"run A has seed {FITTED}, the warm-up {WARM_UP}")
    bench.console.print(f"runs B: seeds {seeds.start} to {seeds.stop - 1}")
    seconds = 15.0
    found = []
    for each in outcomes(bench.console, seeds, seconds, rate=4.0):
        found.append(each)
        bench.console.print(each)
    table = Table(title="predicted by measured, means over held-out runs")
    for column in ("placement", "TTFT s", "predicted", "error %", "E2E s", "predicted", "error %"):
        table.add_column(column, justify="right")
    for policy in POLICIES:
        own = [each for each in found if each.policy == policy]
        first, whole = errors(found, policy)
        mean = partial(_mean, own)
        table.add_row(
            policy, mean("ttft"), mean("predicted_ttft"), f"{first:+.1f}",
            mean("e2e"), mean("predicted_e2e"), f"{whole:+.1f}",
        )  # fmt: skip
    bench.console.print(table)
    right, total = order(found)
    bench.console.print(f"policies in order: {right} of {total} pairs")
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    return 0


def _mean(found: Sequence[Outcome], name: str) -> str:
    return f"{statistics.fmean(getattr(each, name) for each in found):.3f}"


if __name__ == "__main__":
    sys.exit(main())
