"""Two plain rules, to compare the router with: `skerry edge --placement nearest`, `round-robin`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from skerry_regions import zones as residency
from skerry_regions.region.directory import Directory
from skerry_regions.region.placer import EarlierAttempts, Placer, Route
from skerry_regions.spec_types import PlacementRule
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.protocol import Submit


def by_rule(rule: PlacementRule, router: Placer, directory: Directory) -> Placer:
    """Return the router, or what it is compared with."""
    if rule == "cost":
        return router
    if rule == "nearest":
        return Nearest(directory)
    return RoundRobin(directory)


class Nearest:
    """`Placer`: the least busy node of the edge's own region; others only when all of it fails."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        """See `Placer.place`."""
        here = {link.node for link in self._directory.links_here()}

        def distance(link: NodeLink) -> tuple[float, int]:
            return 0.0 if link.node in here else 1.0 + (link.rtt or 0.0), link.num_streams

        yield from _routes(sorted(_taking(self._directory, submit), key=distance), earlier)


class RoundRobin:
    """`Placer`: one after the other, whatever it costs."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._turns = itertools.count()

    def place(self, submit: Submit, earlier: EarlierAttempts) -> Iterator[Route]:
        """See `Placer.place`."""
        links = sorted(_taking(self._directory, submit), key=lambda link: link.node)
        first = next(self._turns) % len(links) if links else 0
        yield from _routes([*links[first:], *links[:first]], earlier)


def _taking(directory: Directory, submit: Submit) -> list[NodeLink]:
    """Return the links that can be given this request."""
    return [
        link
        for link in directory.links()
        if link.is_up
        and submit.model in link.models
        and residency.allows(submit.residency, link.zone)
        and directory.members[link.node].role != "prefill"
    ]


def _routes(links: list[NodeLink], earlier: EarlierAttempts) -> Iterator[Route]:
    for tried in (False, True):
        for link in links:
            if (link.node in earlier.failed) is tried:
                yield Route(decode=link)
