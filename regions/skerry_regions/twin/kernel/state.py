"""What the event loop reads and writes: tables of requests, nodes, edges and events.

A table is a record array of NumPy, of which `Columns` declares the columns: `nodes.context[3]` is
read alike by Python and by compiled code, and one table is one argument there.

Times are seconds of the virtual clock. A slot is a node, or, behind all nodes, a region as the
edges of other regions see it. Slots of one region's nodes are neighbours.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast, get_type_hints

import numpy as np

from skerry_regions.routing.fast.arrays import IndexArrays, RankingScratch, Weights
from skerry_regions.routing.fast.compiled import Floats, Int32s, Int64s, UInt64s

NONE = -1

# Phases of a request.
COMING, ON_ITS_WAY, QUEUED, MOVING, DECODING, DONE, FAILED = range(7)

# Kinds of events.
STEP, REPORT, SUMMARY, FORWARDED, FETCHED, HANDED_OVER, AGAIN = range(7)

# Placements: rules of `region.plain_placers`, the router, or whoever calls the loop.
BY_COST, NEAREST, ROUND_ROBIN, BY_CALLER = range(4)

# Why the loop returns.
PAUSED, WANTS_ROOM, WANTS_PLACEMENT = range(3)

# Columns of a report (`NodeLoad`, when it was made, and prompts that wait).
MADE_AT, TOKENS, PAIRS, R_STREAMS, R_CONTEXT, R_WAITING, NUM_REPORTED = range(7)

# Columns of a booking.
(
    B_AT, B_NEW, B_PAIRS, B_PROMPT, B_EDGE, B_KIND, B_REQUEST, NUM_BOOKED
) = range(8)  # fmt: skip
PREFILLS, DECODES = 1, 2  # bits of B_KIND

# Columns of a `StepSample`.
S_STEPS, S_SECONDS, S_NEW, S_PAIRS, S_STREAMS, S_CONTEXT, NUM_SAMPLED = range(7)

MAX_STREAMS, MAX_REGIONS = 1024, 60
OWN = np.uint64(1 << 63)  # bit of names of blocks that one request alone has
ITL_BUCKETS = 320  # of 5 % each, from 0.1 ms
ITL_LEAST, ITL_RATIO = 1e-4, 1.05

# Places in `Clock.numbers`: the next arrival; totals; the request that is being placed, its edge,
# the region that it must not leave, and the best place in another region, while one here is priced.
(
    NEXT, NUM_EVENTS, NUM_FORWARDED, NUM_SPLIT, NUM_LOST_MESSAGES,
    PLACED, PLACED_BY, ONLY_REGION, FAR_SLOT, NUM_CLOCK,
) = range(10)  # fmt: skip
FAR_SECONDS, FAR_CACHED, PLACED_AT = range(3)  # places in `Clock.placed`


class Columns:
    """Columns of a record array, by their annotations. Shapes of columns are part of its type: all
    are constants, or each scenario would be compiled for itself."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return how many rows there are."""
        raise NotImplementedError  # a record array has it


Kind = TypeVar("Kind", bound=Columns)
TYPES: dict[Any, type] = {
    Floats: np.float64, Int64s: np.int64, UInt64s: np.uint64, Int32s: np.int32
}  # fmt: skip


def make_table(kind: type[Kind], rows: int, **shapes: tuple[int, ...] | int) -> Kind:
    """Return so many rows of zeros; `shapes` are those of columns that hold arrays."""
    columns = [
        (name, TYPES[hint], shapes.get(name, ())) for name, hint in get_type_hints(kind).items()
    ]
    return cast(Kind, np.zeros(rows, np.dtype(columns)).view(np.recarray))


class Requests(Columns):
    """One row per request, in order of arrival."""

    arrival: Floats  # at the edge
    prompt: Floats  # tokens; what was made before a failure joins it
    left: Int64s  # tokens to make
    region: Int64s  # that its client calls
    edge: Int64s  # that sent it to its node
    first: Int64s  # place in `names` of its first block
    num_blocks: Int64s
    session: UInt64s  # 0: none
    phase: Int64s
    attempt: Int64s  # events of earlier ones are void
    cached: Floats  # tokens found when its prefill began; negative before
    computed: Floats  # tokens
    assumed: Floats  # uncached tokens, as its edge thought
    ready: Floats  # when fetched blocks are there
    began: Floats  # when it was sent to its node
    prefill: Int64s  # slots
    decode: Int64s
    fetched: Int64s  # leading blocks that are fetched
    context: Floats  # tokens when it joined its batch
    next: Int64s  # in its node's queue
    previous: Int64s
    base_way: Floats  # seconds between its edge and its client, and of the edge itself
    way: Floats  # the same with what lies between edge and node
    since: Floats  # when it came, or lost its node
    first_token: Floats  # seconds from arrival to the client; NaN until then
    end: Floats
    hit: Floats  # tokens found cached, of the first attempt that computed


class Nodes(Columns):
    """One row per slot; of a region's, most columns are not used."""

    truth: Floats  # [nodes, NUM_COLUMNS]: how fast it is
    believed: Floats  # [slots, NUM_COLUMNS]: how fast edges think it is
    region: Int64s
    role: Int64s
    up: Int64s  # whether it computes
    noise: Floats  # sigma of a step's lognormal time
    max_streams: Int64s
    tokens_per_step: Floats  # of a stream
    head: Int64s  # of its queue of prompts
    tail: Int64s
    num_waiting: Int64s
    waiting: Floats  # [nodes, 2]: tokens and pairs of that queue
    keys: Int64s  # [nodes, MAX_STREAMS]: heap of streams by last step
    streams: Int64s  # [nodes, MAX_STREAMS]: their requests
    num_streams: Int64s
    join_head: Int64s  # streams that enter the batch at the next step
    join_tail: Int64s
    num_joining: Int64s
    joining_context: Floats
    steps: Int64s  # decode steps so far
    context: Floats  # tokens of all streams
    step_id: Int64s  # odd while a step runs
    began: Floats
    ends: Floats
    count: Int64s  # equal steps that run
    num_chunks: Int64s
    chunks: Int64s  # [nodes, chunks]: prompts of this step
    chunk_tokens: Floats
    step_tokens: Floats
    step_pairs: Floats
    factor: Floats  # noise of this step
    egress: Floats  # when its outgoing link is idle
    busy: Floats  # seconds in steps
    samples: Floats  # [nodes, NUM_SAMPLED]: since they were last taken
    news: UInt64s  # [nodes, news]: names that came or went since the last report
    gone: Int64s  # [nodes, news]: 1 where it went
    num_news: Int64s
    own_news: Int64s  # how many more blocks of one request alone it holds than at the last report
    reports: Floats  # [slots, 2, NUM_REPORTED]: the newest, and the one before
    version: Int64s  # changes with each report and booking
    bookings: Floats  # [slots, bookings, NUM_BOOKED]: a ring
    booked: Int64s  # [slots, 2]: oldest and end
    heard_by: Floats  # when all edges will know of the newest booking


class BlockCaches(NamedTuple):
    """Each node's LRU of blocks: a hash table, and a list from the oldest to the newest."""

    keys: UInt64s  # [nodes, entries]; 0: empty
    places: Int32s
    names: UInt64s  # [nodes, blocks + 1]; place 0 is the list's end
    newer: Int32s
    older: Int32s
    counts: Int64s  # [nodes, 2]: blocks held, and at most


class Edges(Columns):
    """One row per edge."""

    region: Int64s
    seen_at: Floats  # when its rows were last brought up to date
    traffic: Floats  # [4]: rate, at, cached, new (`routing.traffic`)
    paid_names: UInt64s  # [prefixes] (`routing.rental`)
    paid: Floats
    turns: Int64s


class EdgeRows(NamedTuple):
    """The router's rows (`routing.fast.arrays.Rows`), of each edge or region."""

    numbers: Floats  # [edges, slots, NUM_COLUMNS]
    marks: Int32s  # [regions, slots, NUM_MARKS]
    hashes: UInt64s
    trees: Floats  # [3, edges, 2 * slots]: offering, withheld, pace
    seen: Int64s  # [edges, slots]: version of each row that it has
    active: Int64s  # [edges, slots]: its own requests there
    others: Int64s  # [regions, MAX_CANDIDATES]: slots of other regions
    counts: Int64s  # [regions, 3]: slots, `others`, nodes that share what comes


class Regions(Columns):
    """One row per region, and one more, where the last one's slots and edges end."""

    first_slot: Int64s
    first_edge: Int64s
    rtts: Floats  # [MAX_REGIONS]
    bandwidths: Floats
    loss: Floats
    crossed: Floats  # [regions]: bytes that went
    news: UInt64s  # [news]: names to say to others with the next summary
    num_news: Int64s
    home: Int64s  # which region clients of each call now; -1: none
    moved_at: Floats  # when they do so
    itl: Floats  # [ITL_BUCKETS]: tokens by the step that made them


class ComingEvents(Columns):
    """Events to come, a heap."""

    times: Floats
    kinds: Int64s
    subjects: Int64s
    stamps: Int64s


class Clock(NamedTuple):
    """The events to come, and where the loop is."""

    events: ComingEvents
    length: Int64s
    numbers: Int64s
    random: UInt64s
    asked: Int64s
    """Of the caller: prefill slot, decode slot, slot fetched from, its leading blocks, tokens
    thought to be cached, and 1 where this is the answer to that."""
    expected: Floats  # [expectations, 3]: expiry, slot, request; a ring
    expectations: Int64s  # its oldest and its end
    placed: Floats  # of what is placed: what the best place in another region costs, tokens cached
    # there, and since when it is placed
    queues: Floats  # room to sort nodes' queues


class RunSettings(NamedTuple):
    """What does not change in a run."""

    num_nodes: int
    num_regions: int
    placement: int
    report_seconds: float
    summary_seconds: float
    told_seconds: float  # negative: edges report nothing to each other
    expected_output: float
    rate_seconds: float
    reuse_tokens: float
    patience: float  # seconds that a request waits for any node
    indexed: bool
    until: float  # no report is made after this


class World(NamedTuple):
    """All of it."""

    requests: Requests
    names: UInt64s  # of all requests' blocks, with `OWN` (`caches.mark_own`)
    nodes: Nodes
    caches: BlockCaches
    edges: Edges
    rows: EdgeRows
    regions: Regions
    clock: Clock
    settings: RunSettings
    index: IndexArrays  # type: ignore[assignment]  # also a method of tuples
    weights: Weights
    scratch: RankingScratch
