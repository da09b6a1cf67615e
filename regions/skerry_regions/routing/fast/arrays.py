"""What a ranking reads and writes: the arrays of nodes, index, request and answer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from skerry_regions.routing.fast.compiled import Floats, Int32s, Int64s, UInt64s
from skerry_regions.routing.fast.holders import Holders
from skerry_regions.routing.fast.laws import NUM_COLUMNS

# Columns of `marks`.
LIVE, ROLE, REGION, RESIDENCY, BUILD, FORMAT, FLAGS, NUM_MARKS = range(8)
PREFILL, DECODE, HYBRID = range(3)
CLOSED, TAKES_KV, IS_REGION = 1, 2, 4  # bits of FLAGS
"""Closed: draining, or out of reach."""

MAX_CANDIDATES = 256  # priced in one ranking
MAX_REGION_EDGES = 4096  # known of other regions
MAX_SOURCES = 8  # peers that a fetch is considered from
MAX_LEAST = 64  # nodes of one kind among the candidates
MAX_FRONT = 1 << 11  # subtrees: more than a walk over all that it may look at leaves behind
MAX_NAMES = 1 << 12  # blocks of a prompt that are looked for: 256 k tokens

NOBODY = -1  # a slot, region, build or zone that is none
SEVERAL = -2  # builds

# Columns of a candidate's sides.
(
    P_SECONDS, P_NETWORK, P_QUEUE, P_FETCH, P_COMPUTE, P_STALL, P_BEHIND, P_EVICT, P_AFFINITY,
    P_CACHED, P_SOURCE, P_FIRST, P_LAST,
    D_SECONDS, D_NETWORK, D_STEP_WAIT, D_DECODE, D_STALL, D_CACHED,
    NUM_SIDES,
) = range(20)  # fmt: skip

# Columns of an answer.
TERMS = (
    "network", "queue", "fetch", "prefill", "handover", "lag", "step_wait", "decode", "stall",
    "behind", "evict", "affinity",
)  # fmt: skip
NUM_TERMS = len(TERMS)
PREFILL_SLOT, DECODE_SLOT, CACHED, SOURCE, FIRST, LAST, NUM_CHOSEN = range(7)


class Rows(NamedTuple):
    """One row per slot."""

    numbers: Floats  # [slots, NUM_COLUMNS]
    marks: Int32s  # [slots, NUM_MARKS]
    hashes: UInt64s  # of the nodes' ids
    offering: Floats  # tree of `laws.would_end` of nodes that prefill for others
    withheld: Floats  # likewise of those that prefill only what they decode
    pace: Floats  # tree of the seconds of a step with one more stream, of those that decode
    rtts: Floats  # [regions, regions]
    bandwidths: Floats
    regions: Int64s  # slots of other regions' edges: one of each region, then another one of each
    counts: Int64s  # [number of slots in use, number of `regions`]


class IndexArrays(NamedTuple):
    """Who holds which blocks."""

    told: Holders  # by their own word, and expected
    filed: Holders  # of these, in the file tier
    pending: UInt64s  # (name, slot) that are only expected
    expiries: Floats
    stored: Int64s  # by slot: blocks by its own word
    num_filed: Int64s
    num_pending: Int64s
    totals: Int64s  # [entries of `pending` that were ever used, live ones]


class Ask(NamedTuple):
    """A request, as `placement.Demand` says it, with what the router knows besides."""

    now: float
    prompt_tokens: float
    output_tokens: float
    arrivals: float  # per second and node
    mean_speed: float  # prompt tokens per second of a node that they are for
    reuse: float
    origin: int  # code of a region
    only_region: int
    residency: int
    before: int  # the build that made the output so far
    mixed_builds: bool
    any_role: bool
    affinity: np.uint64  # 0: no session
    indexed: bool  # price candidates only


class Weights(NamedTuple):
    """Of `placement.RouterConfig`."""

    block_size: float
    decode: float
    behind: float
    evict: float
    affinity_seconds: float
    num_sources: int
    num_holders: int
    num_least: int
    num_random: int


class RankingScratch(NamedTuple):
    """Room for one ranking."""

    random: UInt64s
    stamps: Int64s  # by slot: `epoch` once its price was thought of, and 1 more as a candidate
    epoch: Int64s  # even; of this ranking
    front: Int64s  # of a walk over a tree, and the keys
    front_keys: Floats
    least: Int64s  # slots of the least keys
    hold: Int64s  # of the prefix's holders the cheapest so far, and about what they cost
    hold_keys: Floats
    values: Int64s  # of the prompt's names, up to the first that no node holds
    slots: Int64s  # candidates, and their leading blocks: in any tier, in memory, in the file tier
    blocks: Int64s
    resident: Int64s
    in_file: Int64s
    sources: Int64s
    source_blocks: Int64s
    sides: Floats  # [candidates, NUM_SIDES]
    prefills: Int64s  # candidates by price
    decodes: Int64s
    keys: Floats  # of the best so far: leaves the build, seconds, tie break
    chosen: Int64s  # [placements, NUM_CHOSEN]
    terms: Floats  # [placements, NUM_TERMS]
    found: Int64s  # [candidates, sources, slot of the session's home]


def make_scratch(slots: int, candidates: int, placements: int, seed: int) -> RankingScratch:
    """Return room for rankings of so many candidates among so many slots."""
    return RankingScratch(
        random=np.array([seed | 1], np.uint64),
        stamps=np.zeros(slots, np.int64),
        epoch=np.zeros(1, np.int64),
        front=np.zeros(MAX_FRONT, np.int64),
        front_keys=np.zeros(MAX_FRONT),
        least=np.zeros(MAX_LEAST, np.int64),
        hold=np.zeros(MAX_LEAST, np.int64),
        hold_keys=np.zeros(MAX_LEAST),
        values=np.zeros(MAX_NAMES, np.int64),
        slots=np.zeros(candidates, np.int64),
        blocks=np.zeros(candidates, np.int64),
        resident=np.zeros(candidates, np.int64),
        in_file=np.zeros(candidates, np.int64),
        sources=np.zeros(MAX_SOURCES, np.int64),
        source_blocks=np.zeros(MAX_SOURCES, np.int64),
        sides=np.zeros((candidates, NUM_SIDES)),
        prefills=np.zeros(candidates, np.int64),
        decodes=np.zeros(candidates, np.int64),
        keys=np.zeros((placements, 3)),
        chosen=np.zeros((placements, NUM_CHOSEN), np.int64),
        terms=np.zeros((placements, NUM_TERMS)),
        found=np.zeros(3, np.int64),
    )


def make_rows(slots: int, regions: int) -> Rows:
    """Return rows without a node. `slots` is a power of two."""
    return Rows(
        numbers=np.zeros((slots, NUM_COLUMNS)),
        marks=np.zeros((slots, NUM_MARKS), np.int32),
        hashes=np.zeros(slots, np.uint64),
        offering=np.full(2 * slots, np.inf),
        withheld=np.full(2 * slots, np.inf),
        pace=np.full(2 * slots, np.inf),
        rtts=np.zeros((regions, regions)),
        bandwidths=np.ones((regions, regions)),
        regions=np.zeros(MAX_REGION_EDGES, np.int64),
        counts=np.zeros(2, np.int64),
    )
