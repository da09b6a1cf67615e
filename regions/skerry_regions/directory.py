"""An edge's knowledge of the nodes: who is there by the registry, and a connection to each.

What was read last stays true while the registry is away. A lease that lapsed removes a node only
when its connection is down as well: a registry that was wiped costs no stream, a frozen node loses
both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from skerry_regions.address import Address, AddressError
from skerry_regions.node_link import NodeLink, Patience
from skerry_regions.protocol import Hello
from skerry_regions.registry import RENEW_SECONDS, Member, Registry, RegistryUnavailable

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.02  # between looks at links that come up


class Directory:
    """Links to nodes, by node id. Lives on one event loop."""

    def __init__(
        self,
        registry: Registry,
        hello: Hello,
        *,
        patience: Patience | None = None,
        poll_seconds: float = RENEW_SECONDS / 2,
    ) -> None:
        self._registry = registry
        self._hello = hello
        self._patience = patience
        self._poll_seconds = poll_seconds
        self.on_change: Callable[[], None] = lambda: None  # set by who wants to know
        self._members: dict[str, Member] = {}
        self._links: dict[str, NodeLink] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_away = False
        self._task = asyncio.create_task(self._follow(), name="directory")

    @property
    def members(self) -> Mapping[str, Member]:
        """Nodes as they last described themselves."""
        return MappingProxyType(self._members)

    def links(self) -> list[NodeLink]:
        return list(self._links.values())

    def link(self, node: str) -> NodeLink | None:
        return self._links.get(node)

    async def wait_until_served(self, models: frozenset[str]) -> None:
        """Return once each of these models has a node that can be given streams."""
        while not models <= self._served():  # noqa: ASYNC110  (many links, each with its event)
            await asyncio.sleep(LOOK_SECONDS)

    def apply(self, members: list[Member]) -> None:
        """Take in a reading of the registry."""
        present = {member.id: member for member in members if member.kind == "node"}
        for node in list(self._members):
            if node not in present and not self._links[node].is_up:
                self._forget(node)
        for node, member in present.items():
            if member.address:
                self._know(node, member)
        self.on_change()

    async def close(self) -> None:
        self._task.cancel()
        for node in list(self._links):
            self._forget(node)
        await asyncio.gather(self._task, *self._closing, return_exceptions=True)

    def _served(self) -> frozenset[str]:
        return frozenset(model for link in self.links() if link.is_up for model in link.models)

    def _know(self, node: str, member: Member) -> None:
        known = self._members.get(node)
        if known is not None and known.address != member.address:
            self._forget(node)
        if node not in self._links:
            try:
                address = Address.parse(member.address)
            except AddressError as error:
                logger.warning("node %s cannot be reached: %s", node, error)
                return
            self._links[node] = NodeLink(node, address, self._hello, self._patience)
        self._members[node] = member

    def _forget(self, node: str) -> None:
        self._members.pop(node, None)
        if (link := self._links.pop(node, None)) is not None:
            closing = asyncio.create_task(link.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _follow(self) -> None:
        while True:
            try:
                self.apply(await asyncio.to_thread(self._registry.members))
                self._is_away = False
            except RegistryUnavailable as error:
                if not self._is_away:
                    logger.warning("the registry is away, its last word stands: %s", error)
                self._is_away = True
            await asyncio.sleep(self._poll_seconds)
