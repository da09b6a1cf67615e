"""All that a topology file can say, the control plane can: each field comes back from resources."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT, Struct, structs
from tests.regions.control.support import MODEL, Api

from skerry_cli.resources.manifests import manifest_text
from skerry_regions.control.desired.manifest import Manifest
from skerry_regions.topology.loading import decode_topology, parse_topology
from skerry_regions.topology.spec import Topology

pytestmark = pytest.mark.anyio

EVERYTHING = f"""\
regions:
  - {{name: fra, iata: FRA, residency: eu, coordinates: [50.1, 8.6]}}
  - {{name: iad, iata: IAD, residency: us}}
pools:
  - {{name: prefill, region: fra, role: prefill, model: "{MODEL}", runner: torch, replicas: 2,
      threads: 3, kv_blocks: 64, streams: 8, step_tokens: 128, draft_tokens: 0,
      file_tier: 1GiB, pin_share: 0.5, weights: q8_0, kv: fp8,
      parallel: {{tensor: 2, pipeline: 3}}}}
  - {{name: decode, region: iad, role: decode, model: "{MODEL}",
      parallel: {{pipeline: 2, stages: ["10.0.0.7:8795"]}}}}
edges:
  - {{name: edge, region: fra, host: 127.0.0.2, port: 8799, addresses: [192.0.2.1],
      placement: nearest, url: "https://ai.test", tls: {{cert: /c.pem, key: /k.pem}},
      hosts: [ai.test], console: "on"}}
links:
  - {{between: [fra, iad], rtt: 0.2, bandwidth: 1000000}}
emulate: {{rtt: links}}
steer: {{policy: redirect, margin: 0.1, drain_seconds: 2}}
router: {{candidates: all}}
warm_up:
  - {{model: "{MODEL}", system_prompts: ["You are a tide table."]}}
state: nats://10.0.0.2:4222?system=sys:secret
dns:
  zone: example.test
  names: [go]
  nameservers: [{{name: ns1, addresses: [192.0.2.53]}}]
  contact: admin
  host: 127.0.0.3
  port: 5399
  nets:
    - {{net: 198.51.100.0/24, region: fra, residency: eu}}
    - {{net: 203.0.113.0/24, coordinates: [40.7, -74.0]}}
  records: ["www 300 IN A 192.0.2.80"]
  geo: /geo.mmdb
  secondaries: [{{address: 192.0.2.54, port: 5353}}]
  ttl: 60
  health: {{interval: 2, failures: 4, successes: 6, busy_seconds: 3}}
  limits: {{responses_per_second: 21, subnets_per_second: 1001, proofs_per_second: 101,
           exempt: [192.0.2.0/24]}}
  regions: [{{name: fra, weight: 2, drain: 10}}]
  spread: 0.01
  default_region: iad
  overrides:
    - {{country: DE, region: fra}}
    - {{asn: 64500, coordinates: [1.0, 2.0]}}
  clouds: false
  serve: false
  asn: /asn.mmdb
"""
ELSEWHERE = {"warm_up", "state"}
"""What has another form in a control plane: a deployment, with the same prompts; how it is
started."""


def parts(value: Any) -> Iterator[Struct]:
    """Return every struct inside, and itself."""
    if isinstance(value, Struct):
        yield value
        value = tuple(getattr(value, name) for name in value.__struct_fields__)
    if isinstance(value, tuple):
        for each in value:
            yield from parts(each)


class Read:
    """Stands for a client of the control plane: everything, as its API lists it."""

    def __init__(self, listed: dict[str, list[dict[str, Any]]]) -> None:
        self._listed = listed

    def all(self, path: str) -> list[dict[str, Any]]:
        return self._listed[path]


def test_the_file_says_everything() -> None:
    """No field of a topology is left at its default, so a new one fails until it is here."""
    topology = parse_topology(EVERYTHING.encode())
    by_type = itertools.groupby(sorted(parts(topology), key=_name), key=_name)
    for name, group in by_type:
        found = [*group]
        for field in structs.fields(found[0]):
            default = field.default if field.default is not NODEFAULT else None
            said = [getattr(each, field.name) for each in found]
            assert any(value != default for value in said), f"{name}.{field.name}"


async def test_every_field_comes_back(tmp_path: Path) -> None:
    api = Api(tmp_path)
    wanted = parse_topology(EVERYTHING.encode())
    file = msgspec.convert(msgspec.to_builtins(wanted), Manifest)
    refused = await api.http.post("/apply", json={"manifest": msgspec.to_builtins(file)})
    assert refused.status_code == 422
    assert refused.json()["error"]["field"] == "manifest.state"
    body = {"manifest": msgspec.to_builtins(structs.replace(file, state=None))}
    assert (await api.http.post("/apply", json=body)).status_code == 200
    collections = ("regions", "pools", "edge_nodes", "deployments", "routing")
    listed = {f"/{name}": (await api.http.get(f"/{name}")).json()["items"] for name in collections}
    text = manifest_text(Read(listed))  # type: ignore[arg-type]
    deployments = msgspec.yaml.decode(text)["deployments"]
    assert [each["system_prompts"] for each in deployments] == [["You are a tide table."]]
    found = parse_topology(text[: text.index("deployments:")].encode() + _after(text))
    zone = decode_topology((await api.http.get("/dns_zones/example.test/contents")).content)
    for name in Topology.__struct_fields__:
        if name not in ELSEWHERE:
            source = zone if name == "dns" else found
            assert _as_set(getattr(source, name)) == _as_set(getattr(wanted, name)), name
    assert (zone.links, zone.edges, zone.steer) == (wanted.links, _of_dns(wanted), wanted.steer)
    await api.close()


def _name(part: Struct) -> str:
    return type(part).__name__


def _after(text: str) -> bytes:
    """Return what follows the deployments, which a topology has not."""
    return text[text.index("links:") :].encode()


def _as_set(value: Any) -> Any:
    """Return what is equal in any order: resources are listed by id."""
    return sorted(value, key=repr) if isinstance(value, tuple) else value


def _of_dns(topology: Topology) -> Any:
    """Return edges as a DNS server has to know them."""
    return tuple(
        structs.replace(edge, placement="cost", hosts=(), console="loopback")
        for edge in topology.edges
    )
