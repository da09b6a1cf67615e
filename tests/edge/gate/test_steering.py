"""Clients that are nearer to another edge, or whose edge is to stop: what each is sent."""

from __future__ import annotations

import dataclasses
import ipaddress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from msgspec.structs import replace
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from tests.edge.support import Deployment

from skerry_edge.api.app import Rim
from skerry_edge.gate.inside import InsideCall
from skerry_edge.gate.steering import Elsewhere, Steering, may_go_anywhere, steered
from skerry_regions.geo.from_topology import places_of
from skerry_regions.registry import Member
from skerry_regions.topology.loading import parse_topology

pytestmark = pytest.mark.anyio

TOPOLOGY = b"""\
regions:
  - {name: fra, iata: FRA, residency: eu}
  - {name: ams, iata: AMS, residency: eu}
  - {name: iad, iata: IAD, residency: us}
steer: {policy: redirect}
dns:
  zone: example.test
  nameservers: [{name: ns1}]
  nets:
    - {net: 198.51.100.0/24, region: fra}
    - {net: 203.0.113.0/24, coordinates: [40.7, -74.0]}
    - {net: 192.0.2.0/24, coordinates: [40.7, -74.0], residency: eu}
    - {net: 192.0.3.0/24, region: fra, residency: us}
"""
GERMAN, AMERICAN, BOUND_TO_EU, BOUND_TO_US, UNKNOWN = (
    "198.51.100.7", "203.0.113.7", "192.0.2.7", "192.0.3.7", "10.0.0.1",
)  # fmt: skip
CHAT = "/v1/chat/completions"


def edge(region: str, zone: str, id: str = "") -> Member:
    return Member(
        id=id or f"edge-{region}",
        kind="edge",
        region=region,
        residency=zone,
        address=f"http://{region}.internal:8787",
        public_url="https://iad.example.test" if region == "iad" else "",
        state="ready",
    )


@dataclass
class World:
    """An edge in Frankfurt, and others."""

    members: list[Member] = field(
        default_factory=lambda: [edge("ams", "eu"), edge("fra", "eu"), edge("iad", "us")]
    )
    policy: str = "redirect"

    def steering(self) -> Steering:
        text = TOPOLOGY.replace(b"policy: redirect", b"policy: " + self.policy.encode())
        topology = parse_topology(text)
        assert topology.steer is not None
        return Steering(
            topology.steer,
            topology,
            places_of(topology),
            id="edge-fra",
            region="fra",
            zone="eu",
            members=lambda: self.members,
        )


def sent_to(steering: Steering, address: str, zone: str | None = None) -> str | None:
    """The region."""
    elsewhere = steering.elsewhere(ipaddress.ip_address(address), zone)
    return None if elsewhere is None else elsewhere.region


def test_who_is_nearer_to_another_edge_goes_there() -> None:
    steering = World().steering()
    assert sent_to(steering, GERMAN) is None
    assert sent_to(steering, UNKNOWN) is None
    assert steering.elsewhere(ipaddress.ip_address(AMERICAN), None) == Elsewhere(
        "iad", "https://iad.example.test"
    )


def test_only_edges_that_are_ready_count() -> None:
    world = World()
    world.members[2] = replace(world.members[2], state="draining")
    assert sent_to(world.steering(), AMERICAN) is None
    world.members = [replace(world.members[2], kind="node", state="ready")]
    assert sent_to(world.steering(), AMERICAN) is None
    world.members = []  # the registry is empty
    assert sent_to(world.steering(), AMERICAN) is None


def test_a_little_nearer_is_not_enough() -> None:
    world = World()
    near_ams = parse_topology(TOPOLOGY.replace(b"[40.7, -74.0]", b"[52.3, 4.8]"))
    assert near_ams.steer is not None
    steering = world.steering()
    steering._places = places_of(near_ams)
    assert sent_to(steering, AMERICAN) is None
    steering.policy = replace(near_ams.steer, margin=0.0)
    assert sent_to(steering, AMERICAN) == "ams"


def test_nobody_leaves_a_zone() -> None:
    steering = World().steering()
    assert sent_to(steering, AMERICAN, "eu") is None
    assert sent_to(steering, BOUND_TO_EU) is None  # however near it is to the other one
    assert sent_to(steering, BOUND_TO_US) == "iad"  # it must not be here
    assert sent_to(steering, BOUND_TO_US, "eu") is None  # it cannot be anywhere
    steering.drain()
    assert sent_to(steering, AMERICAN, "eu") == "ams"
    assert sent_to(steering, AMERICAN, "jp") is None


def test_an_edge_that_drains_sends_everybody_away() -> None:
    world = World()
    steering = world.steering()
    steering.drain()
    assert sent_to(steering, GERMAN) == "ams"
    assert sent_to(steering, AMERICAN) == "iad"
    assert sent_to(steering, UNKNOWN) == "ams"
    world.members.append(edge("fra", "eu", id="edge-fra-2"))
    assert sent_to(steering, GERMAN) == "fra"
    assert sent_to(steering, UNKNOWN) == "fra"
    world.members = [edge("fra", "eu")]
    assert sent_to(steering, GERMAN) is None  # nobody else is there


def test_a_region_that_joined_later_is_far_away() -> None:
    world = World(members=[edge("new", "eu")])
    steering = world.steering()
    assert sent_to(steering, AMERICAN) is None
    steering.drain()
    assert sent_to(steering, AMERICAN) == "new"


# --- over HTTP -----------------------------------------------------------------------------------


class Placed:
    """An edge behind `steered`, which says where a client is."""

    def __init__(self, steering: Steering, address: str, zone: str | None) -> None:
        self._steering, self._address, self._zone = steering, address, zone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["client"] = (self._address, 1234)
        onward = await steered(self._steering, scope, self._zone, receive, send)
        if onward is not None:
            await PlainTextResponse("here")(scope, receive, onward)


async def ask(
    steering: Steering,
    target: str = CHAT,
    *,
    address: str = AMERICAN,
    zone: str | None = None,
    method: str = "POST",
    **headers: str,
) -> httpx.Response:
    outer = Placed(steering, address, zone)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(outer), base_url="http://fra"
    ) as client:
        return await client.request(method, target, headers=given)


@pytest.mark.parametrize(
    ("target", "location"),
    [
        (CHAT, f"{CHAT}?skerry-hops=1"),
        ("/run?a=b%20c", "/run?a=b%20c&skerry-hops=1"),
        (
            "/client/v4/accounts/1/ai/run/@cf/x%2Fy",
            "/client/v4/accounts/1/ai/run/@cf/x%2Fy?skerry-hops=1",
        ),
    ],
)
async def test_redirects(target: str, location: str) -> None:
    told = await ask(World().steering(), target)
    assert (told.status_code, told.headers["location"]) == (
        307, f"https://iad.example.test{location}",
    )  # fmt: skip
    assert (told.headers["cache-control"], told.headers["x-skerry-hops"]) == ("no-store", "1")


@pytest.mark.parametrize(
    "hops",
    [
        {"target": f"{CHAT}?skerry-hops=1"},
        {"target": f"{CHAT}?skerry-hops="},
        {"target": f"{CHAT}?skerry-hops=-1"},
        {"x_skerry_hops": "1"},
        {"x_skerry_hops": "99999999999999999999"},
        {"alt_used": "iad.example.test"},
    ],
)
async def test_nobody_is_sent_on_twice(hops: dict[str, Any]) -> None:
    told = await ask(World().steering(), **hops)
    assert (told.status_code, told.text) == (200, "here")
    assert "alt-svc" not in told.headers


@pytest.mark.parametrize(
    "request_",
    [
        {"target": "/v1/files"},
        {"target": "/v1/responses"},
        {"target": "/v1/batches"},
        {"target": "/run?queueRequest=true"},
        {"target": "/v1/models", "method": "GET"},
        {"target": CHAT, "method": "GET"},
    ],
)
async def test_what_only_this_edge_has_stays_here(request_: dict[str, Any]) -> None:
    told = await ask(World().steering(), **request_)
    assert (told.status_code, "alt-svc" in told.headers) == (200, False)


@pytest.mark.parametrize(
    ("raw", "may"),
    [
        (b"/ai/run/@cf/x", True),
        (b"@elsewhere.test/ai/run/x", False),  # `https://iad.example.test@elsewhere.test/…`
        (b"%2F@elsewhere.test/ai/run/x", False),
        (b"http://fra/ai/run/x", False),
    ],
)
def test_a_target_that_is_no_path_is_not_redirected(raw: bytes, may: bool) -> None:
    scope: Scope = {"method": "POST", "path": unquote(raw.decode()), "raw_path": raw}
    assert may_go_anywhere(scope) is may


async def test_an_edge_sends_only_callers_from_outside_away(edge: Deployment) -> None:
    rim = Rim(dataclasses.replace(edge.edge, steering=World().steering()))

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        revoked = InsideCall(request_id="x", principal=None, priority="batch")
        await rim.serve(scope, receive, send, revoked)

    statuses = []
    for app, method, path in (
        (rim.serve, "POST", CHAT),
        (rim.serve, "GET", "/healthz"),
        (inside, "POST", CHAT),
    ):
        transport = httpx.ASGITransport(app, client=(AMERICAN, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://fra") as client:
            headers = {"authorization": f"Bearer {edge.token}"}
            statuses.append((await client.request(method, path, headers=headers)).status_code)
    assert statuses == [307, 200, 401]


async def test_who_is_never_sent_away() -> None:
    steering = World().steering()
    for told in (
        await ask(steering, address="unix"),
        await ask(steering, address=GERMAN),
        await ask(steering, zone="eu"),
    ):
        assert (told.status_code, "alt-svc" in told.headers) == (200, False)
    mapped = await ask(steering, address=f"::ffff:{AMERICAN}")
    assert mapped.status_code == 307


async def test_advice() -> None:
    steering = World(policy="advise").steering()
    told = await ask(steering)
    assert (told.status_code, told.headers["alt-svc"]) == (
        200, 'http%2F1.1="iad.example.test:443"; ma=60',
    )  # fmt: skip
    assert "connection" not in told.headers
    steering.drain()
    told = await ask(steering, address=GERMAN)
    assert (told.headers["alt-svc"], told.headers["connection"]) == (
        'http%2F1.1="ams.internal:8787"; ma=60', "close",
    )  # fmt: skip
