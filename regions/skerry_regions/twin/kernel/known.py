"""What an edge knows of its region's nodes, and of other regions: reports, bookings, rows."""

# pyright: reportArgumentType=false
# An item of a column is a number; NumPy's types cannot say so of a record array.

from __future__ import annotations

import math

from skerry_regions.routing.fast.arrays import LIVE, Rows
from skerry_regions.routing.fast.compiled import called, compiled, wide
from skerry_regions.routing.fast.laws import (
    BUSY_UNTIL,
    CONTEXT,
    NUM_COLUMNS,
    SEEN_CONTEXT,
    SEEN_STREAMS,
    SEEN_TOKENS,
    STREAMS,
    attended_pairs,
    work_seconds,
)
from skerry_regions.routing.fast.pending import forget, tell
from skerry_regions.routing.fast.rows import write_row
from skerry_regions.twin.kernel.state import (
    B_AT,
    B_EDGE,
    B_KIND,
    B_NEW,
    B_PAIRS,
    B_PROMPT,
    B_REQUEST,
    DECODES,
    DONE,
    MADE_AT,
    NUM_REPORTED,
    PAIRS,
    PREFILLS,
    R_CONTEXT,
    R_STREAMS,
    R_WAITING,
    TOKENS,
    Edges,
    Nodes,
    World,
)

SPARSE = 8  # holders in a list, as `CompiledIndex` has it for few slots


@compiled
def rows_of(world: World, e: int) -> Rows:
    """Return the router's rows of an edge."""
    rows, regions, r = world.rows, world.regions, world.edges.region[e]
    return Rows(
        rows.numbers[e],
        rows.marks[r],
        rows.hashes,
        rows.trees[0, e],
        rows.trees[1, e],
        rows.trees[2, e],
        regions.rtts,
        regions.bandwidths,
        rows.others[r],
        rows.counts[r],
    )


@compiled
def newest(world: World, e: int, s: int, rtt: float, now: float) -> int:
    """Return which of a slot's two reports an edge has: another region's are as old as the way."""
    if s < world.settings.num_nodes or now >= world.nodes.reports[s, 0, MADE_AT] + rtt / 2:
        return 0
    return 1


@compiled
def write_slot(world: World, e: int, s: int, now: float) -> None:
    """Write an edge's row of a slot: its report, and bookings that cannot be in it.

    As `routing.bookings.Bookings.backlog` and `routing.fast.table.NodeTable`.
    """
    nodes, edges = world.nodes, world.edges
    region = edges.region[e]
    rtt = world.regions.rtts[region, nodes.region[s]]
    report = nodes.reports[s, newest(world, e, s, rtt, now)]
    row, law = world.rows.numbers[e, s], nodes.believed[s]
    for column in range(NUM_COLUMNS):
        row[column] = law[column]
    streams, context = report[R_STREAMS], report[R_CONTEXT]
    booked_streams, booked_context = 0.0, 0.0
    busy = -math.inf
    if report[TOKENS] > 0 or report[PAIRS] > 0:
        busy = report[MADE_AT] + work_seconds(row, report[TOKENS], report[PAIRS], streams, context)
    size, told = nodes.bookings.shape[1], world.settings.told_seconds
    for number in range(nodes.booked[s, 0], nodes.booked[s, 1]):
        each = nodes.bookings[s, number % size]
        if each[B_AT] + rtt <= report[MADE_AT] + rtt / 2:
            continue
        other = wide(each[B_EDGE])
        if other == e:
            if world.requests.phase[wide(each[B_REQUEST])] >= DONE:
                continue
        elif edges.region[other] != region or told < 0 or now < each[B_AT] + told:
            continue
        kind = wide(each[B_KIND])
        if kind & PREFILLS:
            begin = max(busy, each[B_AT] + rtt / 2)
            busy = begin + work_seconds(row, each[B_NEW], each[B_PAIRS], streams, context)
        if kind & DECODES:
            booked_streams += 1
            booked_context += each[B_PROMPT]
    row[BUSY_UNTIL] = busy
    row[STREAMS], row[CONTEXT] = streams + booked_streams, context + booked_context
    row[SEEN_TOKENS], row[SEEN_STREAMS], row[SEEN_CONTEXT] = report[TOKENS], streams, context
    if world.settings.indexed:  # else nothing looks into the trees
        write_row(rows_of(world, e), s, row, world.weights.decode)


@called
def refresh(world: World, e: int, now: float) -> None:
    """Bring an edge's rows up to date, those that changed."""
    nodes, edges, regions = world.nodes, world.edges, world.regions
    region, before = edges.region[e], edges.seen_at[e]
    num_nodes = world.settings.num_nodes
    for s in range(regions.first_slot[region], regions.first_slot[region + 1]):
        if world.rows.seen[e, s] != nodes.version[s] or before < nodes.heard_by[s]:
            world.rows.seen[e, s] = nodes.version[s]
            write_slot(world, e, s, now)
    for other in range(world.settings.num_regions):
        s = num_nodes + other
        if other != region:
            heard = nodes.reports[s, 0, MADE_AT] + regions.rtts[region, other] / 2
            if world.rows.seen[e, s] != nodes.version[s] or before < max(nodes.heard_by[s], heard):
                world.rows.seen[e, s] = nodes.version[s]
                write_slot(world, e, s, now)
    edges.seen_at[e] = now


@compiled
def arrivals(edges: Edges, e: int, rate_seconds: float, now: float) -> float:
    """See `routing.traffic.Traffic.arrivals`."""
    traffic = edges.traffic[e]
    return traffic[0] * math.exp(-max(0.0, now - traffic[1]) / rate_seconds)


@compiled
def count_traffic(world: World, e: int, prompt: float, cached: float, now: float) -> None:
    """See `routing.traffic.Traffic.count`: of the edge, and of all that hear of it."""
    edges, settings = world.edges, world.settings
    keep = math.exp(-prompt / settings.reuse_tokens)
    first, last = e, e + 1
    if settings.told_seconds >= 0:
        region = edges.region[e]
        first = world.regions.first_edge[region]
        last = world.regions.first_edge[region + 1]
    for other in range(first, last):
        traffic = edges.traffic[other]
        traffic[0] = arrivals(edges, other, settings.rate_seconds, now) + 1 / settings.rate_seconds
        traffic[1] = max(now, traffic[1])
        traffic[2] = traffic[2] * keep + cached
        traffic[3] = traffic[3] * keep + prompt - cached


@compiled
def book(
    world: World, e: int, s: int, x: int, kind: int, new: float, cached: float, now: float
) -> None:
    """Count a request on a slot, until the node reports it."""
    nodes, requests = world.nodes, world.requests
    size = nodes.bookings.shape[1]
    if nodes.booked[s, 1] - nodes.booked[s, 0] >= size:
        nodes.booked[s, 0] += 1
    each = nodes.bookings[s, nodes.booked[s, 1] % size]
    nodes.booked[s, 1] += 1
    each[B_AT], each[B_EDGE], each[B_KIND], each[B_REQUEST] = now, e, kind, x
    each[B_NEW], each[B_PAIRS] = new, attended_pairs(new, cached)
    each[B_PROMPT] = requests.prompt[x]
    nodes.version[s] += 1
    if world.settings.told_seconds >= 0:
        nodes.heard_by[s] = now + world.settings.told_seconds


@compiled
def put_report(
    nodes: Nodes, s: int, at: float, tokens: float, pairs: float, streams: float, context: float,
    waiting: float,
) -> None:  # fmt: skip
    """Write a slot's report, and keep the one before."""
    for column in range(NUM_REPORTED):
        nodes.reports[s, 1, column] = nodes.reports[s, 0, column]
    report = nodes.reports[s, 0]
    report[MADE_AT], report[TOKENS], report[PAIRS] = at, tokens, pairs
    report[R_STREAMS], report[R_CONTEXT], report[R_WAITING] = streams, context, waiting
    nodes.version[s] += 1


@compiled
def is_away(world: World, v: int) -> bool:
    """Return whether a node does not run and no edge sends to it, which its last report says."""
    nodes, report = world.nodes, world.nodes.reports[v, 0]
    if nodes.up[v] or world.rows.marks[nodes.region[v], v, LIVE]:
        return False
    is_reported = report[TOKENS] == 0 and report[R_STREAMS] == 0 and nodes.num_news[v] == 0
    is_reported &= nodes.own_news[v] == 0
    return is_reported and nodes.booked[v, 0] == nodes.booked[v, 1]


@called
def report_node(world: World, v: int, now: float) -> None:
    """Report a node's load and its blocks: all edges of its region hear it at once."""
    nodes, regions = world.nodes, world.regions
    tokens, pairs = nodes.waiting[v, 0], nodes.waiting[v, 1]
    if nodes.step_id[v] & 1 and nodes.num_chunks[v] > 0:  # less what is computed by now
        share = (now - nodes.began[v]) / (nodes.ends[v] - nodes.began[v])
        tokens -= share * nodes.step_tokens[v]
        pairs -= share * nodes.step_pairs[v]
    streams = float(nodes.num_streams[v] + nodes.num_joining[v])
    context = nodes.context[v] + nodes.joining_context[v]
    put_report(
        nodes, v, now, max(tokens, 0.0), max(pairs, 0.0), streams, context,
        float(nodes.num_waiting[v]),
    )  # fmt: skip
    rtt, size = regions.rtts[nodes.region[v], nodes.region[v]], nodes.bookings.shape[1]
    while nodes.booked[v, 0] < nodes.booked[v, 1]:  # those that it shows
        if nodes.bookings[v, nodes.booked[v, 0] % size, B_AT] + rtt > now + rtt / 2:
            break
        nodes.booked[v, 0] += 1
    region = nodes.region[v]
    for n in range(nodes.num_news[v]):
        if nodes.gone[v, n]:
            forget(world.index, nodes.news[v, n : n + 1], v)
        else:
            tell(world.index, nodes.news[v, n : n + 1], 0, v, False, SPARSE)
        count = regions.num_news[region]
        if count < regions.news.shape[1] and world.settings.num_regions > 1:
            regions.news[region, count] = nodes.news[v, n]
            regions.num_news[region] = count + 1
    nodes.num_news[v] = 0
    world.index.stored[v] += nodes.own_news[v]
    nodes.own_news[v] = 0
