"""What runs, at a glance: the supervisor's word, each node's engines, each edge's distances."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import Struct

from skerry_cli.home.control import EdgeStatus, EngineFigures, NodeStatus, Status
from skerry_regions.address import Address, AddressError
from skerry_regions.geo.region_report import RegionReport
from skerry_regions.process.pages import NoPage, page_at, page_of

ASK_SECONDS = 2.0  # for any one process; whoever is slower is shown without figures


class NodeFigures(Struct, frozen=True, kw_only=True):
    """A node as it is shown. `engine` is None where it could not be reached."""

    id: str
    region: str
    role: str
    model: str
    state: str
    streams: int
    engine: EngineFigures | None = None
    cache_hits: float | None = None  # share of prompt tokens that did not run
    tokens_per_second: float | None = None  # made since the last look
    busy: float | None = None  # share of the time since the last look spent in steps


class EdgeView(Struct, frozen=True, kw_only=True):
    """An edge, and the measured round trip to each region in seconds."""

    id: str
    region: str
    url: str
    rtt: dict[str, float] = {}


class PoolView(Struct, frozen=True, kw_only=True):
    """Nodes of one region, role and model, added up."""

    region: str
    role: str
    model: str
    nodes: int
    ready: int
    streams: int
    waiting: int
    kv_used: float | None  # share of blocks that sequences hold
    cache_hits: float | None
    tokens_per_second: float | None


class Overview(Struct, frozen=True, kw_only=True):
    """All of it; what `skerry top --json` prints."""

    url: str
    at: float  # seconds, monotonic: for rates between two of them
    pools: list[PoolView]
    nodes: list[NodeFigures]
    edges: list[EdgeView]
    notes: list[str]


class _NodeAnswer(Struct):
    engines: dict[str, EngineFigures] = {}


async def look(read: Callable[[], Status], token: str, before: Overview | None = None) -> Overview:
    """Query every process at once, edges with the token of an operator. `before` makes rates.

    Raises what `read` raises.
    """
    status = with_launched(await asyncio.to_thread(read))
    at = asyncio.get_running_loop().time()
    engines, rtts = await asyncio.gather(
        asyncio.gather(*map(_engine, status.nodes)),
        asyncio.gather(*(_rtts(edge, token) for edge in status.edges)),
    )
    return overview(status, engines, rtts, at, before)


def with_launched(status: Status) -> Status:
    """Return the status with what the control plane runs among its nodes and edges."""
    view = status.control
    if view is None or status.includes_control:
        return status
    nodes = [
        msgspec.convert(each | {"role": each["role"] or ""}, NodeStatus)
        for each in view.nodes
        if each["kind"] == "node"
    ]
    edges = [
        EdgeStatus(id=each["id"], pid=each["pid"], url=each["address"], region=each["region"])
        for each in view.nodes
        if each["kind"] == "edge"
    ]
    return msgspec.structs.replace(
        status,
        url=status.url or view.url,
        nodes=[*status.nodes, *nodes],
        edges=[*status.edges, *edges],
        notes=[*status.notes, *view.troubles()],
    )


def overview(
    status: Status,
    engines: Sequence[EngineFigures | None],
    rtts: Sequence[dict[str, float]],
    at: float,
    before: Overview | None,
) -> Overview:
    """Return what was answered, put together. `engines`, and `rtts` by region, in the order of the
    status."""
    known = {(node.id, node.model): node for node in before.nodes} if before is not None else {}
    seconds = at - before.at if before is not None else 0.0
    nodes = [
        _node(node, engine, known.get((node.id, node.model)), seconds)
        for node, engine in zip(status.nodes, engines, strict=True)
    ]
    edges = [
        EdgeView(id=edge.id, region=edge.region, url=edge.url, rtt=rtt)
        for edge, rtt in zip(status.edges, rtts, strict=True)
    ]
    return Overview(
        url=status.url, at=at, pools=_pools(nodes), nodes=nodes, edges=edges, notes=status.notes
    )


def _node(
    status: NodeStatus, engine: EngineFigures | None, before: NodeFigures | None, seconds: float
) -> NodeFigures:
    node = msgspec.convert(status, NodeFigures, from_attributes=True)
    hits = _hits([engine] if engine is not None else [])
    node = msgspec.structs.replace(node, engine=engine, cache_hits=hits)
    earlier = before.engine if before is not None else None
    if engine is None or earlier is None or seconds <= 0:
        return node
    tokens = engine.output_tokens - earlier.output_tokens
    busy = engine.busy_seconds - earlier.busy_seconds
    if tokens < 0:  # it was restarted
        return node
    return msgspec.structs.replace(
        node, tokens_per_second=tokens / seconds, busy=min(max(busy / seconds, 0.0), 1.0)
    )


def _pools(nodes: Iterable[NodeFigures]) -> list[PoolView]:
    by_pool: dict[tuple[str, str, str], list[NodeFigures]] = {}
    for node in nodes:
        by_pool.setdefault((node.region, node.role, node.model), []).append(node)
    return [_pool(key, members) for key, members in by_pool.items()]


def _pool(key: tuple[str, str, str], nodes: Sequence[NodeFigures]) -> PoolView:
    region, role, model = key
    engines = [node.engine for node in nodes if node.engine is not None]
    blocks = sum(engine.blocks for engine in engines)
    rates = [node.tokens_per_second for node in nodes if node.tokens_per_second is not None]
    return PoolView(
        region=region,
        role=role,
        model=model,
        nodes=len(nodes),
        ready=sum(node.state == "ready" for node in nodes),
        streams=sum(node.streams for node in nodes),
        waiting=sum(engine.waiting for engine in engines),
        kv_used=sum(engine.blocks_used for engine in engines) / blocks if blocks else None,
        cache_hits=_hits(engines),
        tokens_per_second=sum(rates) if rates else None,
    )


def _hits(engines: Sequence[EngineFigures]) -> float | None:
    """Return, of all prompt tokens so far, the share found in a cache."""
    found = sum(engine.cache_hit_tokens for engine in engines)
    ran = sum(engine.computed_tokens - engine.output_tokens for engine in engines)
    return found / (found + ran) if found + ran > 0 else None


async def _engine(node: NodeStatus) -> EngineFigures | None:
    """Return the figures of the node's model; None where it has none or does not answer."""
    if node.engine is not None:
        return node.engine
    try:
        body = await page_of(Address.parse(node.control), "/status", seconds=ASK_SECONDS)
        answer = msgspec.json.decode(body, type=_NodeAnswer)
    except (NoPage, AddressError, msgspec.DecodeError):
        return None
    return answer.engines.get(node.model)


async def _rtts(edge: EdgeStatus, token: str) -> dict[str, float]:
    """Return round trips by region; none where the edge does not answer."""
    try:
        headers = {"authorization": f"Bearer {token}"}
        body = await page_at(f"{edge.url}/regions", headers=headers, seconds=ASK_SECONDS)
        return msgspec.json.decode(body, type=RegionReport).rtt_seconds
    except (NoPage, ValueError):
        return {}
