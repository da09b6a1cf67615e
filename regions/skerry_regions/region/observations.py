"""All that an edge has seen of its nodes, and the `View` that a router needs of it.

What nodes are comes from the registry (`Member`), what they do from their reports: load, measured
steps, cached prefixes. Distances come from pings, bandwidth from KV that nodes fetched. A view is
made anew only when something changed.

Pure: members, reports, round trips and the time are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations_with_replacement
from types import MappingProxyType

from msgspec.structs import replace

from skerry_regions.registry import Member
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.speeds import LagLearner, LinkLearner, LinkSpeed, NodeSpeed, SpeedBook
from skerry_regions.view import NodeLoad, NodeState, View
from skerry_regions.wire.protocol import Report

# A small model on a few CPU cores. The first measurement of a kind of node mends the scale.
PRIOR = NodeSpeed(
    base=0.005, per_token=5e-4, per_pair=1e-8, per_stream=1e-3, per_context=1e-7, chunk_tokens=512
)
PRIOR_HANDOVER_LAG = 0.005  # seconds
SNAPSHOT_SECONDS = 1.0  # between two askings of one node

NO_PRIORS: Mapping[tuple[str, str], LinkSpeed] = MappingProxyType({})


class Observations:
    """Of one edge, which stands in `region`. As big as the cluster.

    `links` are priors by pair of regions; see `Topology.link_priors`.
    """

    def __init__(
        self, region: str, *, links: Mapping[tuple[str, str], LinkSpeed] = NO_PRIORS
    ) -> None:
        self.region = region
        self.prefixes = PrefixDirectory()
        self.speeds = SpeedBook()
        self._priors = {_ordered(*pair): speed for pair, speed in links.items()}
        self._links: dict[tuple[str, str], LinkLearner] = {}  # by regions, in order
        self._members: dict[str, Member] = {}
        self._reports: dict[str, tuple[Report, float]] = {}  # the last one, and of when it is
        self._lags: dict[str, LagLearner] = {}  # of hand-overs, by decode node
        self._asked: dict[str, float] = {}  # for a snapshot, when
        self._view: View | None = None
        self._version = 0

    def know(self, members: Iterable[Member]) -> None:
        """The nodes there are now; others are forgotten."""
        present = {member.id: member for member in members if member.model}
        if present == self._members:
            return
        for node in self._members.keys() - present.keys():
            self._forget(node)
        for node, member in present.items():
            known = self._members.get(node)
            if known is not None and known.incarnation != member.incarnation:
                self._reports.pop(node, None)
            if known is None or _speed_class(known) != _speed_class(member):
                self.speeds.add_node(node, _speed_class(member), PRIOR)
        self._members = present
        self._view = None

    def take(self, node: str, report: Report, now: float) -> bool:
        """Take in a node's report; whether it should be asked for a snapshot of its prefixes.

        Reports of strangers, of other models, and in another node's name are ignored.
        """
        member = self._members.get(node)
        if member is None or report.model != member.model:
            return False
        self._reports[node] = replace(report, fetched=[], prefixes=None), now - report.load_age
        if report.sample is not None:
            self.speeds.learn(node, report.sample)
        for fetched in report.fetched:
            if (source := self._members.get(fetched.source)) is not None:
                link = self._link(source.region, member.region)
                link.learn_transfer(fetched.num_bytes, fetched.seconds)
        if report.prefixes is not None and report.prefixes.node == node:
            self.prefixes.apply(report.prefixes)
        self._view = None
        return self._wants_snapshot(node, now)

    def reached(self, region: str, rtt: float) -> None:
        """A round trip to a region took `rtt` seconds."""
        self._link(self.region, region).learn_rtt(rtt)
        self._view = None

    def handed_over(self, decode: str, observed: float, predicted: float, now: float) -> None:
        """A decode node went on `observed` seconds after its prefill node's first token."""
        if decode in self._members:
            self._lags.setdefault(decode, LagLearner(PRIOR_HANDOVER_LAG)).learn(
                observed, predicted, now
            )
            self._view = None

    def view(self, now: float) -> View:
        """The picture now."""
        if self._view is None:
            self._version += 1
            nodes = [self._state(member, now) for member in self._members.values()]
            self._view = View(nodes, self._link_speeds(), version=self._version)
        return self._view

    def _state(self, member: Member, now: float) -> NodeState:
        report, observed_at = self._reports.get(member.id, (_no_report(member), 0.0))
        lag = self._lags.get(member.id)
        return NodeState(
            id=member.id,
            region=member.region,
            residency=member.residency,
            role=member.role,
            model=member.model,
            numeric_build=member.numeric_build,
            batch_invariant=member.batch_invariant,
            kv_format=member.kv_format,
            kv_bytes_per_token=member.kv_bytes_per_token,
            cache_tokens=member.cache_tokens or None,
            speed=self.speeds.speed(member.id),
            incarnation=member.incarnation,
            load=report.load,
            observed_at=observed_at,
            file_bandwidth=report.file_bandwidth,
            takes_kv=bool(member.transfer_address),
            handover_lag=lag.seconds(now) if lag is not None else PRIOR_HANDOVER_LAG,
            draining=member.state != "ready",
        )

    def _link_speeds(self) -> dict[tuple[str, str], LinkSpeed]:
        """Between the regions that matter: ours, and those with nodes."""
        regions = sorted({self.region, *(member.region for member in self._members.values())})
        pairs = combinations_with_replacement(regions, 2)
        priors = {pair: self._priors[pair] for pair in pairs if pair in self._priors}
        return priors | {pair: learner.speed() for pair, learner in self._links.items()}

    def _link(self, a: str, b: str) -> LinkLearner:
        """Between two regions, or inside one; from the prior on."""
        pair = _ordered(a, b)
        if (learner := self._links.get(pair)) is None:
            learner = self._links[pair] = LinkLearner(View((), self._priors).link(a, b))
        return learner

    def _wants_snapshot(self, node: str, now: float) -> bool:
        wanted = node in self.prefixes.wanted_snapshots()
        if not wanted or now - self._asked.get(node, -SNAPSHOT_SECONDS) < SNAPSHOT_SECONDS:
            return False
        self._asked[node] = now
        return True

    def _forget(self, node: str) -> None:
        self.prefixes.remove_node(node)
        self.speeds.remove_node(node)
        for table in (self._reports, self._lags, self._asked):
            table.pop(node, None)


def _ordered(a: str, b: str) -> tuple[str, str]:
    """A link is the same in either direction."""
    return (a, b) if a <= b else (b, a)


def _no_report(member: Member) -> Report:
    return Report(model=member.model, load=NodeLoad())


def _speed_class(member: Member) -> str:
    """Nodes of one class share a curve."""
    return f"{member.model} {member.runner} {member.numeric_build}"
