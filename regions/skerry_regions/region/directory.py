"""An edge's knowledge of nodes and of other regions: who is there by the registry, and a connection
to each.

The nodes of the edge's own region are known one by one, and so are the other edges there, which
report what they send to those nodes. Another region is known by its edges, which stand for it
(`gateway`); while none of them answers, by its nodes as well.

What was read last stays true while the registry is away. A lease that lapsed removes a member only
when its connection is down as well: a registry that was wiped costs no stream, a frozen node loses
both.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from skerry_regions.address import Address, AddressError
from skerry_regions.registry import (
    RENEW_SECONDS,
    Member,
    Registry,
    RegistryUnavailable,
    with_placed,
)
from skerry_regions.wire.link import NodeLink, Patience
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.protocol import Hello
from skerry_regions.wire.reports import Report

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.02  # between looks at links that come up
LONGEST_PAUSE = 5.0  # seconds between readings while each fails by a bug of ours
GATEWAY_SECONDS = 2.0  # that a region's edges may be silent before its nodes are used

Reach = Callable[[str, str, str], str]
"""An address, the region it is in, and that of who wants it: where it is reached from there."""


def directly(address: str, region: str, source: str) -> str:
    """Return its own address."""
    return address


class DirectoryListener(Protocol):
    """Learns what a directory learns. Called on its event loop; must not raise."""

    def members_changed(self, members: Mapping[str, Member]) -> None:
        """Follow these members from now on: a reading of the registry was taken in."""

    def reported(self, link: NodeLink, member: Member, report: Report) -> None:
        """Take in a report that came over a link."""

    def link_changed(self, link: NodeLink) -> None:
        """Record that a link was made, came up or went down, or takes streams of other models than
        before."""

    def peer_sent(self, report: Report) -> None:
        """Take in what another edge of this region sent to nodes."""


class Directory:
    """Links by member id. Lives on one event loop.

    `region` is that of the edge; None knows all nodes of all regions one by one. `placed` are there
    now, whatever the registry says: their addresses are known, the rest they say over links.
    """

    def __init__(
        self,
        registry: Registry,
        hello: Hello,
        listener: DirectoryListener | None = None,
        *,
        region: str | None = None,
        reach: Reach = directly,
        credentials: LinkCredentials = NO_CREDENTIALS,
        patience: Patience | None = None,
        placed: Callable[[], Sequence[Member]] = lambda: (),
        poll_seconds: float = RENEW_SECONDS / 2,
    ) -> None:
        self._registry = registry
        self._id = hello.id
        self._region = region
        self._reach = reach
        self._placed = placed
        self._new_link: Callable[[Member], Callable[..., NodeLink]] = lambda to: functools.partial(
            NodeLink, hello=hello, patience=patience, zone=to.residency,
            credentials=credentials.towards(to.machine),
        )  # fmt: skip
        self._poll_seconds = poll_seconds
        self._listener = listener
        self._read: list[Member] = []  # last, from the registry
        self.starting: frozenset[str] = frozenset()  # models of nodes that are being started
        self._members: dict[str, Member] = {}
        self._links: dict[str, NodeLink] = {}
        self._peers: dict[str, tuple[Member, NodeLink]] = {}  # other edges of this region
        self._heard: dict[str, float] = {}  # of gateways, when their link was last up
        self._unreachable: dict[str, str] = {}  # by id: an address that is none, as it was logged
        self._closing: set[asyncio.Task[None]] = set()
        self._is_away = False
        self._task = asyncio.create_task(self._follow(), name="directory")

    @property
    def members(self) -> Mapping[str, Member]:
        """Return nodes and edges that there is a link to, as they last described themselves."""
        return MappingProxyType(self._members)

    @property
    def edges(self) -> list[Member]:
        """Return those of all regions, by the registry's last word."""
        return [member for member in self._read if member.kind == "edge"]

    def links(self) -> list[NodeLink]:
        return list(self._links.values())

    def links_here(self) -> list[NodeLink]:
        """Return links to the nodes of this edge's region."""
        return [
            link
            for id_, link in self._links.items()
            if self._members[id_].kind == "node" and self._members[id_].region == self._region
        ]

    def is_peer(self, id_: str) -> bool:
        """Return whether an edge stands in this edge's region, beside it."""
        return id_ in self._peers

    def link(self, id_: str) -> NodeLink | None:
        return self._links.get(id_)

    def rtts(self) -> dict[str, float]:
        """Return the seconds to each and back, of its last ping."""
        return {id_: link.rtt for id_, link in self._links.items() if link.rtt is not None}

    def transfer_address(self, node: str, source: str) -> str:
        """Return where the node `source` sends KV for `node`; empty when either is unknown."""
        if node not in self._members or source not in self._members:
            return ""
        target = self._members[node]
        return self._reach(target.transfer_address, target.region, self._members[source].region)

    async def wait_until_served(self, models: frozenset[str]) -> None:
        """Return once each of these models has a node that can be given streams."""
        while not models <= self._served():  # noqa: ASYNC110  (many links, each with its event)
            await asyncio.sleep(LOOK_SECONDS)

    def apply(self, members: Sequence[Member]) -> None:
        """Take in a reading of the registry."""
        gone = {member.id for member in members if member.state == "revoked"}
        for id_ in [i for i, m in self._members.items() if not gone.isdisjoint((i, m.machine))]:
            self._forget(id_)  # with its streams, which go on elsewhere
        self._read = members = [m for m in members if gone.isdisjoint((m.id, m.machine))]
        said = {id_: link.described for id_, link in self._links.items()}
        members = with_placed(members, self._placed(), said)
        gateways = {member.id: member for member in members if self._is_gateway(member)}
        covered = self._covered(gateways)
        nodes = {member.id: member for member in members if member.kind == "node"}
        self.starting = frozenset(n.model for n in nodes.values() if n.state == "starting")
        wanted = gateways | {
            id_: node for id_, node in nodes.items() if node.region not in covered and node.address
        }
        for id_ in self._members.keys() - wanted.keys():
            link = self._links[id_]
            if not link.is_up or (id_ in nodes and not link.num_streams):
                self._forget(id_)
        self._unreachable = {id_: at for id_, at in self._unreachable.items() if id_ in wanted}
        for id_, member in wanted.items():
            self._know(id_, member)
        self._follow_peers(members)
        if self._listener is not None:
            self._listener.members_changed(self.members)

    async def close(self) -> None:
        self._task.cancel()
        for id_ in list(self._links):
            self._forget(id_)
        self._follow_peers(())
        await asyncio.gather(self._task, *self._closing, return_exceptions=True)

    def _is_gateway(self, member: Member) -> bool:
        return self._region not in (None, member.region) and bool(member.gateway)

    def _follow_peers(self, members: Sequence[Member]) -> None:
        """Have a link to every other edge of this region, which says what it sends where."""
        peers = {
            member.id: member
            for member in members
            if member.gateway and member.region == self._region and member.id != self._id
        }
        for id_, (member, link) in list(self._peers.items()):
            if id_ not in peers or _place(peers[id_]) != _place(member):
                del self._peers[id_]
                self._close(link)
        for id_ in peers.keys() - self._peers.keys():
            member = peers[id_]
            try:
                address = Address.parse(member.gateway)
            except AddressError:
                continue
            link = self._new_link(member)(id_, address, on_report=self._peer_reported)
            self._peers[id_] = member, link

    def _peer_reported(self, report: Report) -> None:
        if self._listener is not None and report.sent:
            self._listener.peer_sent(report)

    def _covered(self, gateways: Mapping[str, Member]) -> set[str]:
        """Return regions with an edge that answers, or has only just been heard of."""
        now = asyncio.get_running_loop().time()
        self._heard = {id_: self._heard.get(id_, now) for id_ in gateways}
        for id_ in gateways:
            if (link := self._links.get(id_)) is not None and link.is_up:
                self._heard[id_] = now
        return {
            member.region
            for id_, member in gateways.items()
            if now - self._heard[id_] < GATEWAY_SECONDS
        }

    def _served(self) -> frozenset[str]:
        return frozenset(model for link in self.links() if link.is_up for model in link.models)

    def _know(self, id_: str, member: Member) -> None:
        known = self._members.get(id_)
        if known is not None and _place(known) != _place(member):
            if known.incarnation > member.incarnation and self._links[id_].is_up:
                return  # it was replaced: only a registry that forgot so says otherwise
            self._forget(id_)
        if id_ not in self._links:
            written = member.gateway or member.address
            try:
                address = Address.parse(self._reach(written, member.region, self._region or ""))
            except AddressError as error:
                if self._unreachable.get(id_) != written:
                    logger.warning("%s cannot be reached: %s", id_, error)
                self._unreachable[id_] = written
                return
            self._unreachable.pop(id_, None)
            self._links[id_] = self._new_link(member)(
                id_,
                address,
                on_report=functools.partial(self._reported, id_),
                on_change=functools.partial(self._link_changed, id_),
            )
            self._link_changed(id_)
        if member.kind == "node":  # edges offer all models
            self._links[id_].expect(frozenset({member.model}))
        self._members[id_] = member

    def _reported(self, id_: str, report: Report) -> None:
        member, link = self._members.get(id_), self._links.get(id_)
        if self._listener is not None and member is not None and link is not None:
            self._listener.reported(link, member, report)

    def _link_changed(self, id_: str) -> None:
        if self._listener is not None and (link := self._links.get(id_)) is not None:
            self._listener.link_changed(link)

    def _forget(self, id_: str) -> None:
        self._members.pop(id_, None)
        if (link := self._links.pop(id_, None)) is not None:
            self._close(link)

    def _close(self, link: NodeLink) -> None:
        closing = asyncio.create_task(link.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def _follow(self) -> None:
        pause = self._poll_seconds
        while True:
            try:
                await self._look()
                pause = self._poll_seconds
            except Exception:  # whatever it is: streams run on, and who is there must stay true
                logger.exception("a reading of the registry was not taken in; trying again")
                pause = max(self._poll_seconds, min(2 * pause, LONGEST_PAUSE))
            await asyncio.sleep(pause)

    async def _look(self) -> None:
        try:
            self.apply(await asyncio.to_thread(self._registry.members))
            self._is_away = False
        except RegistryUnavailable as error:
            if not self._is_away:
                logger.warning("the registry is away, its last word stands: %s", error)
            self._is_away = True
            self.apply(self._read)  # connections come and go all the same
            self.starting = frozenset()  # it would not be seen when such a node is ready


def _place(member: Member) -> tuple[str, str, str, str]:
    """Return what a link to it was made for."""
    return member.address, member.gateway, member.residency, member.machine
