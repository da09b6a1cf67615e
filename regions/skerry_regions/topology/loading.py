"""Reads topologies from YAML and JSON, and checks what the types of `spec` cannot say.

Everything is checked at once; the message says file, line and key of what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from skerry_regions.models import located_yaml
from skerry_regions.state_url import StateURL
from skerry_regions.topology.airports import AIRPORTS
from skerry_regions.topology.spec import Topology
from skerry_regions.topology.zone_spec import (
    Mistake,
    address_mistakes,
    client_mistakes,
    duplicates,
    setting_mistakes,
)


class TopologyError(ValueError):
    """A topology that cannot work; the message begins with file and line."""


def load_topology(path: Path) -> Topology:
    """Read and check a YAML file. Raises `TopologyError`, or `OSError` when it cannot be read."""
    return _checked(lambda: located_yaml.load(path, Topology))


def parse_topology(data: bytes, *, source: str = "topology") -> Topology:
    """Return the same from memory; `source` stands for the file in messages."""
    return _checked(lambda: located_yaml.parse(data, source, Topology))


def decode_topology(data: bytes) -> Topology:
    """Decode it from JSON, as another process wrote it. Raises `TopologyError`."""
    try:
        topology = msgspec.json.decode(data, type=Topology)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TopologyError(str(error)) from None
    for path, mistake in _mistakes(topology):
        raise TopologyError(f"{path}: {mistake}")
    return topology


def _checked(read: Callable[[], located_yaml.Located[Topology]]) -> Topology:
    """Raises `TopologyError` at the first mistake."""
    try:
        document = read()
        for path, mistake in _mistakes(document.value):
            raise document.error(path, mistake)
    except located_yaml.YamlError as error:
        raise TopologyError(str(error)) from None
    return document.value


def _mistakes(topology: Topology) -> Iterator[Mistake]:
    """Yield what the types cannot say, in the order of the file."""
    regions = {region.name for region in topology.regions}
    for i, region in enumerate(topology.regions):
        if region.coordinates is None and region.iata is None:
            yield f"regions[{i}]", f"region {region.name!r} needs `iata` or `coordinates`"
        elif region.coordinates is None and region.iata not in AIRPORTS:
            yield (
                f"regions[{i}].iata",
                f"airport {region.iata!r} is not in our list; give `coordinates`",
            )
    yield from duplicates("regions", [region.name for region in topology.regions])
    yield from duplicates("edges", [edge.name for edge in topology.edges])
    yield from _unknown_regions("pools", [pool.region for pool in topology.pools], regions)
    yield from _unknown_regions("edges", [edge.region for edge in topology.edges], regions)
    yield from duplicates("pools", [f"{p.region}/{p.name}" for p in topology.pools])
    yield from _duplicate_nodes(topology)
    yield from _incomplete_pools(topology)
    for i, pool in enumerate(topology.pools):
        if (found := pool.parallel_mistake(pool.runner)) is not None:
            yield f"pools[{i}].{found[0]}", found[1]
    yield from _link_mistakes(topology, regions)
    yield from _dns_mistakes(topology)
    yield from _warm_up_mistakes(topology)
    yield from state_mistakes(topology.state)


def state_mistakes(state: str | None) -> Iterator[Mistake]:
    """Yield what is wrong with where machines are to keep what they share."""
    try:
        if state is not None:
            StateURL.parse(state)
    except ValueError as error:
        yield "state", str(error)


def _unknown_regions(section: str, names: list[str], regions: set[str]) -> Iterator[Mistake]:
    for i, name in enumerate(names):
        if name not in regions:
            yield f"{section}[{i}].region", f"there is no region {name!r}"


def _duplicate_nodes(topology: Topology) -> Iterator[Mistake]:
    """Find nodes of one name: pools `b` of region `a-b` and `b-b` of region `a` would both make a
    node `a-b-b-0`."""
    seen = set()
    for i, pool in enumerate(topology.pools):
        for name in pool.node_names():
            if name in seen:
                yield f"pools[{i}].name", f"a second node would be called {name!r}"
                return
            seen.add(name)


def _incomplete_pools(topology: Topology) -> Iterator[Mistake]:
    """Prefill nodes need somebody who decodes. (Decode nodes can prefill for themselves.)"""
    decoded = {pool.model for pool in topology.pools if pool.role != "prefill"}
    for i, pool in enumerate(topology.pools):
        if pool.model not in decoded:
            yield f"pools[{i}].role", f"no pool decodes {pool.model!r}"


def _warm_up_mistakes(topology: Topology) -> Iterator[Mistake]:
    models = {pool.model for pool in topology.pools}
    for i, warm_up in enumerate(topology.warm_up):
        if warm_up.model not in models:
            yield f"warm_up[{i}].model", f"no pool has the model {warm_up.model!r}"


def _link_mistakes(topology: Topology, regions: set[str]) -> Iterator[Mistake]:
    seen = set()
    for i, link in enumerate(topology.links):
        for name in link.between:
            if name not in regions:
                yield f"links[{i}].between", f"there is no region {name!r}"
        pair = frozenset(link.between)
        if pair in seen:
            yield f"links[{i}].between", "this pair is there twice"
        seen.add(pair)


def _dns_mistakes(topology: Topology) -> Iterator[Mistake]:
    for i, edge in enumerate(topology.edges):
        yield from address_mistakes(f"edges[{i}].addresses", edge.addresses)
    if topology.dns is None:
        return
    zones = {region.name: region.residency for region in topology.regions}
    for path, mistake in client_mistakes(topology.dns.nameservers, topology.dns.nets, zones):
        yield f"dns.{path}", mistake
    for path, mistake in setting_mistakes(topology.dns, zones):
        yield f"dns.{path}", mistake
