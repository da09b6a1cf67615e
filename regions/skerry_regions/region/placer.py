"""Choosing nodes: routes on which one attempt at a request may run, and who offers them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from skerry_regions.routing.placement import Placement, explain
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import Submit


class RouteWatcher(Protocol):
    """Follows an attempt on a route. Called on the event loop; must not raise."""

    def started(self) -> None:
        """Count the request, which is on its way there."""

    def first_tokens(self, node: str) -> None:
        """Note that the first tokens of this node came; on a split route, of either node."""

    def ended(self) -> None:
        """Note that the route is free of the request, whichever way. Also without a start; once or
        more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempts:
    """How earlier attempts at a request ended."""

    failed: frozenset[str] = frozenset()  # nodes; only as a last resort
    numeric_builds: frozenset[str] = frozenset()  # that its output so far was made with


@dataclass(frozen=True, slots=True, kw_only=True)
class KVFetch:
    """Blocks that another node has cached, for the one that computes the prompt."""

    source: NodeLink
    digests: list[bytes]  # of the prompt's first blocks
    kv_address: str  # where they are taken
    lease_seconds: float  # then it computes them itself
    machine: str = ""  # of the one that computes, where it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The nodes of an attempt. With `prefill`, that node computes the prompt and hands it over."""

    decode: NodeLink
    prefill: NodeLink | None = None
    kv_address: str = ""  # where the decode node takes KV
    fetch: KVFetch | None = None
    numeric_builds: frozenset[str] = frozenset()  # of its nodes
    candidates: Sequence[Placement] = ()  # it, and what it was compared with
    watcher: RouteWatcher | None = None

    @property
    def explanation(self) -> str:
        """Return the terms of the decision; only the node, where there was none to make."""
        return explain(self.candidates) or f'"{self.decode.node}"'

    @property
    def nodes(self) -> tuple[str, ...]:
        return (
            (self.decode.node,) if self.prefill is None else (self.prefill.node, self.decode.node)
        )


class Placer(Protocol):
    """Chooses nodes: the router, and whatever it knows of the region."""

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        """Yield routes to try, best first, for a request with the output it has so far."""
        ...
