"""A scenario: what `skerry simulate` runs, as types, and the checks that types cannot make.

A platform (regions, pools, links, router), its load (`traffic`), what breaks
(`failures`), and changes to compare with (`what_if`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from skerry_regions.models import located_yaml
from skerry_regions.speeds import NodeSpeed
from skerry_regions.topology.zone_spec import Mistake, duplicates
from skerry_regions.view import Role

Seconds = Annotated[float, Meta(ge=0, le=1e6)]
Positive = Annotated[float, Meta(gt=0, le=1e18)]
Share = Annotated[float, Meta(ge=0, le=1)]
Name = Annotated[str, Meta(min_length=1, max_length=63, pattern="^[A-Za-z0-9_.-]+$")]
Tokens = Annotated[int, Meta(ge=1, le=1 << 24)]

MAX_REGIONS, MAX_NODES, MAX_EDGES = 60, 4096, 1024


class ScenarioError(ValueError):
    """A scenario that cannot be run; the message begins with file and line."""


class SimulatedRegion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place of nodes and edges."""

    name: Name
    edges: Annotated[int, Meta(ge=1, le=MAX_EDGES)] = 1
    client_rtt: Seconds = 0.0  # between its clients and its edges
    edge_seconds: Seconds = 0.0  # that an edge adds to a request: TLS, template, tokens
    rtt: Seconds = 0.0005  # within it
    bandwidth: Positive = 1.25e9  # bytes per second between two of its nodes


class Law(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Coefficients of a step's time, in seconds per unit: `speeds.NodeSpeed`."""

    base: Seconds
    per_token: Seconds
    per_pair: Seconds = 0.0
    per_stream: Seconds = 0.0
    per_context: Seconds = 0.0
    chunk_tokens: Tokens = 512
    gap_seconds: Seconds = 0.03

    def as_speed(self) -> NodeSpeed:
        """Return the same as routers know it: nothing is quite free, nor infinitely fast."""
        return NodeSpeed(
            base=self.base,
            per_token=max(self.per_token, 1e-15),
            per_pair=max(self.per_pair, 1e-15),
            per_stream=self.per_stream,
            per_context=self.per_context,
            chunk_tokens=self.chunk_tokens,
            gap_seconds=self.gap_seconds,
        )


class SimulatedPool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes of one region; `replicas` of them, or with `max_replicas` as the autoscaler decides."""

    name: Name
    region: Name
    speed: Law
    role: Role = "hybrid"
    replicas: Annotated[int, Meta(ge=0, le=MAX_NODES)] = 1
    max_replicas: Annotated[int, Meta(ge=1, le=MAX_NODES)] | None = None
    min_replicas: Annotated[int, Meta(ge=0, le=MAX_NODES)] = 0
    start_seconds: Seconds = 60.0  # until a new node is ready: machine, weights, kernels
    target_queue_seconds: Positive = 1.0
    target_ttft_seconds: Positive = 2.0
    target_itl_seconds: Positive = 0.2
    idle_seconds: Annotated[float, Meta(ge=1, le=86_400)] = 300.0
    factors: Annotated[list[Positive], Meta(max_length=MAX_NODES)] = []
    """How much slower than `speed` its first nodes are; the others are as fast."""
    noise: Annotated[float, Meta(ge=0, le=2)] = 0.0  # sigma of a step's lognormal time
    cache_tokens: Annotated[int, Meta(ge=0, le=1 << 26)] = 1 << 20
    kv_bytes_per_token: Positive = 131_072.0
    max_streams: Annotated[int, Meta(ge=1, le=1024)] = 256
    tokens_per_step: Annotated[float, Meta(ge=1, le=64)] = 1.0  # of a stream: speculation
    node_hour: Annotated[float, Meta(ge=0, le=1e6)] = 0.0  # its price

    @property
    def most(self) -> int:
        """Return how many nodes there may be at once."""
        return max(self.replicas, self.max_replicas or 0)


class SimulatedLink(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The way between two regions."""

    between: tuple[Name, Name]
    rtt: Seconds
    bandwidth: Positive = 2.5e7  # bytes per second of one connection
    loss: Share = 0.0  # of packets
    gigabyte: Annotated[float, Meta(ge=0, le=1e6)] = 0.0  # price of 10⁹ bytes


class Routing(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How edges choose, and what they know."""

    placement: Literal["cost", "nearest", "round-robin"] = "cost"
    report_seconds: Annotated[float, Meta(ge=0.001, le=60)] = 0.25
    summary_seconds: Annotated[float, Meta(ge=0.001, le=60)] = 0.5
    told_seconds: Seconds | None = 0.005  # until edges of a region know what another sent
    expected_output: Positive = 256.0  # tokens
    learn_from: Positive | None = None
    """Learn nodes' speeds as they go, from a guess so many times too slow; absent: they are known,
    as after some minutes of service."""
    decode_weight: Annotated[float, Meta(ge=0, le=100)] = 0.05
    behind_weight: Annotated[float, Meta(ge=0, le=100)] = 1.0
    evict_weight: Annotated[float, Meta(ge=0, le=100)] = 1.0
    fetch: bool = True  # whether prefixes are fetched from peers
    split: bool = True  # whether one hybrid node may prefill for another


class SimulatedTraffic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes to one region, or to several by shares: a trace, or requests drawn at random."""

    regions: dict[Name, Positive]  # share of the requests (of sessions) by region
    trace: str | None = None  # a file; beside the scenario, when its path is relative
    rate: Positive | None = None  # requests per second, where there is no trace
    seconds: Positive | None = None  # of it
    limit: Annotated[int, Meta(ge=1)] | None = None  # requests of it
    speed: Positive = 1.0  # how much faster than in the trace requests come
    spread_seconds: Seconds = 0.0  # that arrivals of a trace are rounded down to
    prompt_tokens: Tokens = 1000  # mean of what is drawn, besides the shared prefix
    output_tokens: Tokens = 200  # mean
    prefixes: Annotated[int, Meta(ge=0, le=1 << 20)] = 0  # shared prefixes (Zipf, exponent 1)
    prefix_tokens: Tokens = 1000  # of each
    roam: Share = 0.0  # of requests that come to another region than their session's
    day_swing: Share = 0.0  # of the rate between noon and midnight, by the region's own clock
    noon: Annotated[float, Meta(ge=0, lt=24)] = 12.0  # of the first region, hours from the start


class Failure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What breaks at a time, for a time."""

    at: Seconds
    seconds: Seconds
    node: str | None = None  # REGION-POOL-0
    region: Name | None = None  # its nodes and edges
    partition: tuple[Name, Name] | None = None  # these two regions do not reach each other
    freezes: bool = False  # a node stops without a word: noticed after 2 s


class WhatIf(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scenario with a difference."""

    name: Annotated[str, Meta(min_length=1, max_length=80)]
    change: dict[str, Any] = {}
    """By path: `router.placement: nearest`, `pools.h100.replicas: 6`."""
    add: dict[str, list[Any]] = {}  # to lists: regions, pools, links, traffic, failures
    remove: list[str] = []  # paths: `regions.iad`


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it."""

    name: Annotated[str, Meta(min_length=1, max_length=80)] = "as it is"
    seed: Annotated[int, Meta(ge=0, lt=1 << 31)] = 1
    block_size: Annotated[int, Meta(ge=1, le=4096)] = 64  # tokens; a multiple of a trace's
    regions: Annotated[list[SimulatedRegion], Meta(min_length=1, max_length=MAX_REGIONS)]
    pools: Annotated[list[SimulatedPool], Meta(min_length=1, max_length=256)]
    traffic: Annotated[list[SimulatedTraffic], Meta(min_length=1, max_length=64)]
    links: Annotated[list[SimulatedLink], Meta(max_length=4096)] = []
    rtt_matrix: str | None = None  # a CSV file of ms: a row and a column for each region
    router: Routing = Routing()
    failures: Annotated[list[Failure], Meta(max_length=1024)] = []
    dns_seconds: Seconds = 33.0  # until clients of a region that is down call another one
    patience: Seconds = 5.0  # that a request waits for any node
    what_if: Annotated[list[WhatIf], Meta(max_length=64)] = []

    @property
    def names(self) -> list[str]:
        """Return the regions' names, in order."""
        return [region.name for region in self.regions]


def load_scenario(path: Path) -> Scenario:
    """Read and check a YAML file. Raises `ScenarioError`, or `OSError`."""
    try:
        located = located_yaml.load(path, Scenario)
        for where, problem in mistakes(located.value):
            raise located.error(where, problem)
    except located_yaml.YamlError as error:
        raise ScenarioError(str(error)) from None
    return located.value


def mistakes(scenario: Scenario) -> Iterator[Mistake]:
    """Yield what types cannot say, in the order of the file."""
    names = set(scenario.names)
    yield from duplicates("regions", scenario.names)
    yield from duplicates("pools", [f"{pool.region}/{pool.name}" for pool in scenario.pools])
    if sum(region.edges for region in scenario.regions) > MAX_EDGES:
        yield "regions", f"more than {MAX_EDGES} edges"
    for i, pool in enumerate(scenario.pools):
        if pool.region not in names:
            yield f"pools[{i}].region", f"there is no region {pool.region!r}"
        if pool.max_replicas is not None and pool.min_replicas > pool.max_replicas:
            yield f"pools[{i}].min_replicas", "more than `max_replicas`"
    if sum(pool.most for pool in scenario.pools) > MAX_NODES:
        yield "pools", f"more than {MAX_NODES} nodes"
    if not any(pool.role != "prefill" and pool.most for pool in scenario.pools):
        yield "pools", "no node decodes"
    for i, link in enumerate(scenario.links):
        for name in link.between:
            if name not in names:
                yield f"links[{i}].between", f"there is no region {name!r}"
    for i, traffic in enumerate(scenario.traffic):
        yield from _traffic_mistakes(f"traffic[{i}]", traffic, names)
    nodes = set(node_names(scenario))
    for i, failure in enumerate(scenario.failures):
        yield from _failure_mistakes(f"failures[{i}]", failure, names, nodes)


def node_names(scenario: Scenario) -> list[str]:
    """Return the nodes' names, those of one region beside each other."""
    return [
        f"{pool.region}-{pool.name}-{number}"
        for region in scenario.names
        for pool in scenario.pools
        if pool.region == region
        for number in range(pool.most)
    ]


def _traffic_mistakes(
    where: str, traffic: SimulatedTraffic, regions: set[str]
) -> Iterator[Mistake]:
    if not traffic.regions:
        yield f"{where}.regions", "says where requests come to: at least one region"
    for name in traffic.regions:
        if name not in regions:
            yield f"{where}.regions", f"there is no region {name!r}"
    if (traffic.trace is None) == (traffic.rate is None):
        yield where, "needs either `trace` or `rate`"
    if traffic.rate is not None and traffic.seconds is None and traffic.limit is None:
        yield where, "`rate` needs `seconds` or `limit`"


def _failure_mistakes(
    where: str, failure: Failure, regions: set[str], nodes: set[str]
) -> Iterator[Mistake]:
    given = [failure.node, failure.region, failure.partition]
    if sum(each is not None for each in given) != 1:
        yield where, "needs one of `node`, `region`, `partition`"
    if failure.node is not None and failure.node not in nodes:
        yield f"{where}.node", f"there is no node {failure.node!r}"
    for name in (failure.region, *(failure.partition or ())):
        if name is not None and name not in regions:
            yield where, f"there is no region {name!r}"
