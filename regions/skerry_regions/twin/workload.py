"""All requests of a run, as arrays: of traces, or drawn at random, and in which region each comes.

One seed gives one workload, whatever is done with it: policies are compared on the same requests.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from skerry_regions.routing.fast.compiled import Floats, Int64s, UInt64s
from skerry_regions.twin.kernel import state
from skerry_regions.twin.scenario import Scenario, ScenarioError, SimulatedTraffic
from skerry_regions.twin.traces import RequestTrace, TraceRequest, read_trace, spread

MAX_REQUESTS = 50_000_000
MAX_BLOCKS = 4096  # of a prompt that are looked at
HOUR, DAY = 3600.0, 24.0


@dataclass(frozen=True, slots=True)
class Workload:
    """One entry per request, by arrival. Names of blocks are mixed 64-bit numbers."""

    arrivals: Floats  # seconds
    prompts: Int64s  # tokens
    outputs: Int64s
    regions: Int64s
    firsts: Int64s  # places in `names`
    blocks: Int64s
    names: UInt64s

    def __len__(self) -> int:
        return len(self.arrivals)

    @property
    def last(self) -> float:
        """Return when the last request comes."""
        return float(self.arrivals[-1]) if len(self) else 0.0

    def requests(self, base_way: Floats) -> state.Requests:
        """Return them as the event loop has them, none begun. `base_way`: seconds of each that
        its client and edge take."""
        table = state.make_table(state.Requests, len(self))
        table.arrival[:] = table.since[:] = self.arrivals
        table.prompt[:], table.left[:] = self.prompts, self.outputs
        table.region[:], table.first[:], table.num_blocks[:] = (
            self.regions, self.firsts, self.blocks
        )  # fmt: skip
        table.base_way[:] = table.way[:] = base_way
        for column in (table.edge, table.prefill, table.decode, table.next, table.previous):
            column[:] = state.NONE
        for seconds in (table.first_token, table.end, table.hit):
            seconds[:] = np.nan
        return table


def workload_of(scenario: Scenario, base: Path) -> Workload:
    """Return all requests of a scenario; paths are relative to `base`.

    Raises `TraceError`, `ScenarioError` and `OSError`.
    """
    parts = []
    for number, traffic in enumerate(scenario.traffic):
        seed = scenario.seed * 1_000_003 + number
        if traffic.trace is not None:
            trace = read_trace(base / traffic.trace)
            size = trace.block_size or scenario.block_size
            if scenario.block_size % size:
                raise ScenarioError(
                    f"traffic[{number}].trace: its blocks have {size} tokens;"
                    f" set `block_size: {size}`, or a multiple of it"
                )
            per_block = scenario.block_size // size
            parts.append(of_trace(trace, traffic, scenario.names, seed, per_block))
        else:
            parts.append(drawn(traffic, scenario.names, scenario.block_size, seed))
    return joined(parts)


def joined(parts: Sequence[Workload]) -> Workload:
    """Return several as one. Raises `ScenarioError` when they are empty, or too many."""
    count = sum(map(len, parts))
    if not 0 < count <= MAX_REQUESTS:
        raise ScenarioError(f"{count:,} requests: between 1 and {MAX_REQUESTS:,} are simulated")
    starts = np.cumsum([0, *(len(part.names) for part in parts)])
    firsts = [part.firsts + start for part, start in zip(parts, starts, strict=False)]
    arrivals = np.concatenate([part.arrivals for part in parts])
    order = np.argsort(arrivals, kind="stable")
    return Workload(
        arrivals=arrivals[order],
        prompts=np.concatenate([part.prompts for part in parts])[order],
        outputs=np.concatenate([part.outputs for part in parts])[order],
        regions=np.concatenate([part.regions for part in parts])[order],
        firsts=np.concatenate(firsts)[order],
        blocks=np.concatenate([part.blocks for part in parts])[order],
        names=np.concatenate([part.names for part in parts]),
    )


def of_trace(
    trace: RequestTrace,
    traffic: SimulatedTraffic,
    regions: Sequence[str],
    seed: int,
    per_block: int = 1,
) -> Workload:
    """Return a trace's requests, with a name for `per_block` of its blocks. Sessions stay in their
    region, but for those that roam."""
    rng = Random(seed)
    requests: Sequence[TraceRequest] = trace.requests
    if traffic.spread_seconds:
        requests = spread(requests, rng, traffic.spread_seconds)
    if traffic.seconds is not None:
        requests = [each for each in requests if each.arrival <= traffic.seconds]
    requests = requests[: traffic.limit]
    blocks, names = _blocks_of(requests, trace.depths, per_block)
    sessions = np.array(sessions_of(requests, trace.depths), np.int64)
    return Workload(
        arrivals=np.array([each.arrival for each in requests]) / traffic.speed,
        prompts=np.array([each.prompt_tokens for each in requests], np.int64),
        outputs=np.array([each.output_tokens for each in requests], np.int64),
        regions=_regions(sessions, traffic, regions, np.random.default_rng(seed)),
        firsts=np.concatenate([[0], np.cumsum(blocks)])[:-1].astype(np.int64),
        blocks=blocks,
        names=names,
    )


def _blocks_of(
    requests: Sequence[TraceRequest], depths: Sequence[int], per_block: int
) -> tuple[Int64s, UInt64s]:
    """Return how many blocks each request has, and the blocks' names.

    Where a name stands for several blocks, these are numbered from it on: as prompts share either
    all of them or, as far as is known, none.
    """
    most = bisect_right(depths, MAX_BLOCKS * per_block) - 1
    counts = np.array([min(len(each.blocks), most) for each in requests], np.int64)
    flat = b"".join(name[-8:].rjust(8, b"\0") for each in requests for name in each.blocks[:most])
    numbers = np.frombuffer(flat, ">u8").astype(np.uint64)
    until = np.array(depths[: most + 1], np.int64)
    spans = np.diff(until)[_places(counts)]
    numbers = np.repeat(numbers, spans) + _places(spans).astype(np.uint64)
    last = (_places(until[counts]) + 1) % per_block == 0
    return until[counts] // per_block, names_of(numbers[last])


def _places(counts: Int64s) -> Int64s:
    """Return 0, 1, … for each of so many."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def drawn(
    traffic: SimulatedTraffic, regions: Sequence[str], block_size: int, seed: int
) -> Workload:
    """Return requests drawn at random: Poisson arrivals, which a day may thin; lengths that are
    exponential beside a shared prefix, whose popularity is Zipf's (exponent 1)."""
    rng = np.random.default_rng(seed)
    assert traffic.rate is not None
    most = traffic.rate * traffic.speed * (1 + traffic.day_swing)
    expected = most * traffic.seconds if traffic.seconds is not None else float(traffic.limit or 0)
    if expected > MAX_REQUESTS:
        raise ScenarioError(f"{expected:,.0f} requests: at most {MAX_REQUESTS:,} are simulated")
    arrivals = np.cumsum(rng.exponential(1 / most, int(expected * 1.01 + 10 * math.sqrt(expected)
                                                         + 10)))  # fmt: skip
    if traffic.day_swing:
        phase = 2 * math.pi * (arrivals / HOUR - traffic.noon) / DAY
        kept = (1 + traffic.day_swing * np.cos(phase)) / (1 + traffic.day_swing)
        arrivals = arrivals[rng.random(len(arrivals)) < kept]
    if traffic.seconds is not None:
        arrivals = arrivals[arrivals <= traffic.seconds]
    arrivals = arrivals[: traffic.limit]
    count = len(arrivals)
    own = 1 + rng.exponential(traffic.prompt_tokens, count).astype(np.int64)
    shared = np.zeros(count, np.int64)
    prefixes = np.zeros(count, np.int64)
    if traffic.prefixes:
        weights = 1 / np.arange(1, traffic.prefixes + 1)
        prefixes = rng.choice(traffic.prefixes, count, p=weights / weights.sum())
        shared[:] = traffic.prefix_tokens // block_size
    prompts = shared * block_size + own
    blocks = np.minimum(prompts // block_size, MAX_BLOCKS)
    firsts = np.concatenate([[0], np.cumsum(blocks)])[:-1].astype(np.int64)
    places = np.arange(int(blocks.sum())) - np.repeat(firsts, blocks)
    is_shared = places < np.repeat(shared, blocks)
    names = np.arange(len(places), dtype=np.uint64) + np.uint64(seed << 40)
    root = np.uint64((seed << 40) + (1 << 39))
    of_prefix = np.repeat(prefixes, blocks).astype(np.uint64) * np.uint64(MAX_BLOCKS)
    names[is_shared] = (root + of_prefix + places.astype(np.uint64))[is_shared]
    return Workload(
        arrivals=arrivals,
        prompts=prompts,
        outputs=1 + rng.exponential(traffic.output_tokens, count).astype(np.int64),
        regions=_regions(prefixes if traffic.prefixes else np.arange(count), traffic, regions, rng),
        firsts=firsts,
        blocks=blocks,
        names=names_of(names),
    )


def sessions_of(requests: Sequence[TraceRequest], depths: Sequence[int]) -> list[int]:
    """Return a number for each request's session: that of an earlier one of which it has most
    blocks, or a new one. `depths`: how many blocks so many names stand for."""
    owner: dict[bytes, int] = {}
    lengths: list[int] = []
    found = []
    for request in requests:
        depth, session = 0, -1
        for depth, name in enumerate(request.blocks, 1):
            if name not in owner:
                depth -= 1
                break
            session = owner[name]
        if session < 0 or 2 * depths[depth] <= depths[lengths[session]]:
            session = len(lengths)
            lengths.append(0)
        lengths[session] = max(lengths[session], len(request.blocks))
        for name in request.blocks:
            owner.setdefault(name, session)
        found.append(session)
    return found


def names_of(numbers: UInt64s) -> UInt64s:
    """Return a name for each number of a block: 64 bits, above 1.

    Eight numbers in a row, as a prompt's blocks have them, differ in their last bits alone: they
    are neighbours in every hash table, and a prompt is looked up in few lines of memory.
    """
    last = np.uint64(7)
    return np.maximum((_mixed(numbers >> np.uint64(3)) & ~last) | (numbers & last), np.uint64(2))


def _mixed(values: UInt64s) -> UInt64s:
    """Return 64 well-mixed bits of each (SplitMix64's finaliser, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _regions(
    sessions: Int64s, traffic: SimulatedTraffic, regions: Sequence[str], rng: np.random.Generator
) -> Int64s:
    """Return where each request comes: by its session, or, where that roams, by the shares."""
    places = _shares(traffic.regions, regions)
    draws = _mixed(sessions.astype(np.uint64) + np.uint64(77)) / 2.0**64
    roams = rng.random(len(sessions)) < traffic.roam
    draws = np.where(roams, rng.random(len(sessions)), draws)
    return np.minimum(np.searchsorted(places, draws, "right"), len(regions) - 1)


def _shares(shares: Mapping[str, float], regions: Sequence[str]) -> Floats:
    """Return where each region's share ends, between 0 and 1."""
    each = np.array([shares.get(name, 0.0) for name in regions])
    return np.cumsum(each) / each.sum()
