"""A placer that knows no costs: the node with the fewest streams that computes alike."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from skerry_regions.directory import Directory
from skerry_regions.node_link import NodeLink
from skerry_regions.protocol import Submit
from skerry_regions.registry import Member
from skerry_regions.remote import Route

SHORTEST_HAND_OVER = 64  # tokens: below one block there is nothing to hand over


class LeastStreams:
    """`Placer` over a directory: own region first, then few streams, ties at random.

    Prompts are computed on prefill nodes of the decode node's build and region, where there are
    any. A request that failed elsewhere goes on where the numeric build is the same, if it can.
    """

    def __init__(self, directory: Directory, region: str, rng: Random) -> None:
        self._directory = directory
        self._region = region
        self._rng = rng
        self._builds: dict[str, str] = {}  # of every node that was ever chosen

    def place(self, submit: Submit, failed: frozenset[str]) -> Iterator[Route]:
        """See `Placer.place`."""
        present = [
            link for link in self._directory.links() if link.is_up and submit.model in link.models
        ]
        builds = {self._builds[node] for node in failed if node in self._builds}
        for decode in sorted(present, key=lambda link: self._rank(link, failed, builds)):
            member = self._member(decode)
            self._builds[decode.node] = member.numeric_build
            prefill = None
            if member.role == "decode" and len(submit.prompt_ids) > SHORTEST_HAND_OVER:
                prefill = self._prefill(present, member, failed)
            yield Route(decode=decode, prefill=prefill, kv_address=member.transfer_address)

    def _prefill(
        self, present: list[NodeLink], decode: Member, failed: frozenset[str]
    ) -> NodeLink | None:
        """The prefill node that a decode node is given KV from, or None."""
        able = [
            link
            for link in present
            if (member := self._member(link)).role == "prefill"
            and member.state == "ready"
            and member.numeric_build == decode.numeric_build
            and member.region == decode.region
            and link.node not in failed
        ]
        return min(able, key=self._streams, default=None)

    def _rank(
        self, link: NodeLink, failed: frozenset[str], builds: set[str]
    ) -> tuple[bool, bool, bool, bool, bool, int, float]:
        """Smallest first."""
        member = self._member(link)
        return (
            link.node in failed,
            member.state != "ready",
            bool(builds) and member.numeric_build not in builds,
            member.region != self._region,
            member.role == "prefill",
            self._streams(link),
            self._rng.random(),
        )

    def _streams(self, link: NodeLink) -> int:
        return max(self._member(link).streams, link.num_streams)

    def _member(self, link: NodeLink) -> Member:
        return self._directory.members[link.node]
