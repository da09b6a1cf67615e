"""Clients that are nearer to another edge, or whose edge is about to stop, are redirected over
HTTP.

DNS sends a client to a region, and learns late that it was wrong: resolvers keep answers, and some
hide where their clients are. The edge sees the client's own address. By policy it

    advises    `Alt-Svc` with every answer: a client that understands it goes there next time
    redirects  307 to the same path there, once: a request that was sent on is answered where it is

Without a policy it says nothing: work goes to the nearest nodes anyway, through this edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlsplit

from starlette.responses import Response

from skerry_regions.geo.networks import Address, client_address
from skerry_regions.geo.ranking import ClientOrigin, seconds_to
from skerry_regions.registry import Member
from skerry_regions.topology.spec import Steer, Topology

if TYPE_CHECKING:  # edges without a policy need no DNS library
    from starlette.types import Message, Receive, Scope, Send

    from skerry_regions.geo.places import Places

HOPS = "skerry-hops"  # in the query of where a request is sent on to
HOPS_HEADER = "x-skerry-hops"
MAX_HOPS = 1
ADVICE_SECONDS = 60  # that a client keeps it

# What any edge can do alike; all else knows of files, batches or conversations that one has.
ANYWHERE = (
    "/chat/completions", "/completions", "/messages", "/messages/count_tokens", "/embeddings",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another edge, as clients reach it."""

    region: str
    url: str


class Steering:
    """Knows where clients are and which other edges are ready."""

    def __init__(
        self,
        policy: Steer,
        topology: Topology,
        places: Places,
        *,
        id: str,
        region: str,
        zone: str,
        members: Callable[[], Iterable[Member]],
    ) -> None:
        """Of the edge `id`, its region and residency zone; `members` returns all that the registry
        has."""
        self.policy = policy
        self.is_draining = False  # clients are to go elsewhere: this edge is about to stop
        self._topology = topology
        self._places = places
        self._id = id
        self._region = region
        self._zone = zone
        self._members = members

    def drain(self) -> None:
        """Send clients elsewhere from now on."""
        self.is_draining = True

    def elsewhere(self, address: Address, zone: str | None) -> Elsewhere | None:
        """Return where a client should rather go, if not here. A request that is bound to a
        residency zone, or a client that is, gets no edge outside of it."""
        client, _ = self._places.locate(address)
        zones = {bound for bound in (zone, client.zone) if bound is not None}
        edges = [edge for edge in self._others() if zones <= {edge.residency}]
        best = min(edges, key=lambda edge: self._seconds(edge.region, client), default=None)
        if best is None:
            return None
        nearer = self._seconds(self._region, client) - self._seconds(best.region, client)
        must_go = self.is_draining or not zones <= {self._zone}
        if not must_go and not nearer > self.policy.margin:  # nan: where it is is not known
            return None
        return Elsewhere(best.region, best.public_url or best.address)

    def _others(self) -> list[Member]:
        """Return edges that are ready, those of this region first."""
        ready = [
            member
            for member in self._members()
            if member.kind == "edge" and member.state == "ready" and member.id != self._id
        ]
        return sorted(ready, key=lambda member: (member.region != self._region, member.id))

    def _seconds(self, region: str, client: ClientOrigin) -> float:
        try:
            return seconds_to(self._topology.region(region), client)
        except KeyError:  # it joined later than the topology was written
            return math.inf


async def steered(
    steering: Steering, scope: Scope, residency: str | None, receive: Receive, send: Send
) -> Send | None:
    """Send a client elsewhere, if it had better go there.

    Returns how its answer is sent on from here, or None when it was answered. `residency` is the
    zone that its request is bound to.
    """
    elsewhere = _elsewhere(steering, scope, residency)
    if elsewhere is None:
        return send
    if steering.policy.policy == "redirect":
        if not may_go_anywhere(scope):
            return send
        await moved(scope, elsewhere)(scope, receive, send)
        return None
    advice = alt_svc(elsewhere)

    async def advise(message: Message) -> None:
        if message["type"] == "http.response.start":
            more = [(b"alt-svc", advice)]
            if steering.is_draining:
                more.append((b"connection", b"close"))
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return advise


def _elsewhere(steering: Steering, scope: Scope, residency: str | None) -> Elsewhere | None:
    if hops_of(scope) >= MAX_HOPS or scope.get("client") is None:
        return None
    try:
        address = client_address(scope["client"][0])
    except ValueError:
        return None
    return steering.elsewhere(address, residency)


def may_go_anywhere(scope: Scope) -> bool:
    """Return whether any edge would do the same with this request."""
    path, query = scope["path"], scope.get("query_string", b"")
    if scope["method"] != "POST" or b"queueRequest" in query:
        return False
    if not _target(scope).startswith("/"):  # behind a URL it would name another host
        return False
    return path.endswith(ANYWHERE) or path == "/run" or "/ai/run" in path


def hops_of(scope: Scope) -> int:
    """Return how often a request was sent on, as it says itself; what cannot be read counts as too
    often."""
    query = scope.get("query_string", b"").decode("latin-1")
    told = [value for name, value in parse_qsl(query, keep_blank_values=True) if name == HOPS]
    name = HOPS_HEADER.encode()
    told += [value.decode("latin-1") for key, value in scope["headers"] if key == name]
    told += ["1" for key, _ in scope["headers"] if key == b"alt-used"]  # it came by our advice
    return max((int(each) if each in ("0", "1") else MAX_HOPS for each in told), default=0)


def moved(scope: Scope, elsewhere: Elsewhere) -> Response:
    """Return a 307 to the same request at another edge, which will not send it on."""
    query = scope.get("query_string", b"").decode("latin-1")
    hop = f"{HOPS}={hops_of(scope) + 1}"
    location = f"{elsewhere.url}{_target(scope)}?{f'{query}&' if query else ''}{hop}"
    headers = {"location": location, "cache-control": "no-store", HOPS_HEADER: "1"}
    headers["connection"] = "close"  # its body was not read
    return Response(status_code=307, headers=headers)


def _target(scope: Scope) -> str:
    """Return the path as it came, with its escapes."""
    raw: bytes | None = scope.get("raw_path")
    return raw.decode("latin-1") if raw else quote(scope["path"])


def alt_svc(elsewhere: Elsewhere) -> bytes:
    """Return the header's value (RFC 7838)."""
    parts = urlsplit(elsewhere.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = parts.hostname or ""
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f'http%2F1.1="{authority}"; ma={ADVICE_SECONDS}'.encode()
