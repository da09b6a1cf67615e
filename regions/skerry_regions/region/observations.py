"""All that an edge has seen of its nodes, in the `View`s that a router needs: one for each model.

What nodes are comes from the registry (`Member`), what they do from their reports: load, measured
steps, cached prefixes. Distances come from pings, bandwidth from KV that nodes fetched. Views are
changed in place: a report costs what one node costs.

Pure: members, reports, round trips and the time are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from skerry_regions.region.speed_learning import LagLearner, LinkLearner, SpeedBook
from skerry_regions.registry import Member
from skerry_regions.routing.prefixes import PrefixDirectory
from skerry_regions.speeds import LinkSpeed, NodeSpeed
from skerry_regions.view import NodeLoad, NodeState, View, ordered
from skerry_regions.wire.reports import Report

# A small model on a few CPU cores. The first measurement of a kind of node mends the scale.
PRIOR = NodeSpeed(
    base=0.005, per_token=5e-4, per_pair=1e-8, per_stream=1e-3, per_context=1e-7, chunk_tokens=512
)
PRIOR_HANDOVER_LAG = 0.005  # seconds
SNAPSHOT_SECONDS = 1.0  # between two askings of one node
CURVE_SECONDS = 1.0  # between two looks at whether nodes that did not report are faster or slower
CURVE_CHANGE = 0.01  # of a coefficient, below which they are left as they are

NO_REPORT = NodeLoad(), 0.0, 0.0
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
        self._known_links = {ordered(*pair): speed for pair, speed in links.items()}
        self._learners: dict[tuple[str, str], LinkLearner] = {}  # by regions, in order
        self._views: dict[str, View] = {}
        self._members: dict[str, Member] = {}
        self._loads: dict[str, tuple[NodeLoad, float, float]] = {}
        """Of the last report: load, bandwidth of the file tier, and of when it is."""
        self._classes: dict[str, str] = {}  # by node: which share a curve
        self._reached_models: dict[str, frozenset[str]] = {}  # over each link
        self._lags: dict[str, LagLearner] = {}  # of hand-overs, by decode node
        self._asked: dict[str, float] = {}  # for a snapshot, when
        self._curves: dict[str, tuple[float, NodeSpeed]] = {}  # by class, as in the views

    def view(self, model: str) -> View:
        """Return the nodes of a model, and whatever else was put there; always the same object."""
        if (view := self._views.get(model)) is None:
            view = self._views[model] = View((), self._known_links)
        return view

    def know(self, members: Iterable[Member]) -> None:
        """Set the nodes there are now; others are forgotten."""
        present = {member.id: member for member in members if member.model}
        if present == self._members:
            return
        before, self._members = self._members, present
        for node, member in before.items():
            if node not in present:
                self._forget(node)
            if node not in present or present[node].model != member.model:
                self.view(member.model).remove(node)
        for node, member in present.items():
            known = before.get(node)
            if known is not None and known.incarnation != member.incarnation:
                self._loads.pop(node, None)
            speed_class = self._classes[node] = _speed_class(member)
            if known is None or _speed_class(known) != speed_class:
                self.speeds.add_node(node, speed_class, PRIOR)
            if known != member:
                self._put(member)

    def take(self, node: str, report: Report, now: float) -> bool:
        """Take in a node's report; whether a snapshot of its prefixes should be requested.

        Reports of strangers, of other models, and in another node's name are ignored.
        """
        member = self._members.get(node)
        if member is None or report.model != member.model:
            return False
        self._loads[node] = report.load, report.file_bandwidth, now - report.load_age
        if report.sample is not None:
            self.speeds.learn(node, report.sample)
        for fetched in report.fetched:
            if (source := self._members.get(fetched.source)) is not None:
                learner = self._learner(source.region, member.region)
                learner.learn_transfer(fetched.num_bytes, fetched.seconds)
                self._put_link(source.region, member.region)
        if report.prefixes is not None and report.prefixes.node == node:
            self.prefixes.apply(report.prefixes)
        self._put(member, now)
        self._follow_curve(member, now)
        return self._wants_snapshot(node, now)

    def reached(self, region: str, rtt: float) -> None:
        """Count a round trip to a region of `rtt` seconds."""
        self._learner(self.region, region).learn_rtt(rtt)
        self._put_link(self.region, region)

    def link_takes(self, id_: str, models: frozenset[str]) -> None:
        """Note that streams of these models can be sent over the link to a node, or an edge."""
        if self._reached_models.get(id_) == models:
            return
        self._reached_models[id_] = models
        for model, view in self._views.items():
            if (node := view.nodes.get(id_)) is not None:
                view.put(replace(node, away=model not in models))

    def link_is_gone(self, id_: str) -> None:
        """Note that there is no link any more."""
        self._reached_models.pop(id_, None)

    def is_away(self, id_: str, model: str) -> bool:
        """Return whether a model's streams cannot be sent there now."""
        models = self._reached_models.get(id_)
        return models is not None and model not in models

    def handed_over(self, decode: str, observed: float, predicted: float, now: float) -> None:
        """Count that a decode node went on `observed` seconds after its prefill node's first
        token."""
        if (member := self._members.get(decode)) is not None:
            self._lags.setdefault(decode, LagLearner(PRIOR_HANDOVER_LAG)).learn(
                observed, predicted, now
            )
            self._put(member, now)

    def _put(self, member: Member, now: float = 0.0) -> None:
        """Bring one node up to date in its view."""
        load, file_bandwidth, observed_at = self._loads.get(member.id, NO_REPORT)
        lag = self._lags.get(member.id)
        self.view(member.model).put(
            NodeState(
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
                load=load,
                observed_at=observed_at,
                file_bandwidth=file_bandwidth,
                takes_kv=bool(member.transfer_address),
                handover_lag=lag.seconds(now) if lag is not None else PRIOR_HANDOVER_LAG,
                draining=member.state != "ready",
                away=self.is_away(member.id, member.model),
            )
        )

    def _follow_curve(self, member: Member, now: float) -> None:
        """Bring a class of nodes up to date when what they share is another curve by now."""
        speed_class = self._classes[member.id]
        at, written = self._curves.get(speed_class, (-CURVE_SECONDS, None))
        if now - at < CURVE_SECONDS:
            return
        curve = self.speeds.curve(member.id)
        if written is not None and not _differ(curve, written):
            self._curves[speed_class] = now, written
            return
        self._curves[speed_class] = now, curve
        for each in self._members.values():
            if self._classes[each.id] == speed_class:
                self._put(each, now)

    def _put_link(self, a: str, b: str) -> None:
        pair = ordered(a, b)
        speed = self._known_links[pair] = self._learners[pair].speed()
        for view in self._views.values():
            view.put_link(a, b, speed)

    def _learner(self, a: str, b: str) -> LinkLearner:
        """Return that between two regions, or inside one; from the prior on."""
        pair = ordered(a, b)
        if (learner := self._learners.get(pair)) is None:
            learner = self._learners[pair] = LinkLearner(View((), self._known_links).link(a, b))
        return learner

    def _wants_snapshot(self, node: str, now: float) -> bool:
        wanted = self.prefixes.wants_snapshot(node)
        if not wanted or now - self._asked.get(node, -SNAPSHOT_SECONDS) < SNAPSHOT_SECONDS:
            return False
        self._asked[node] = now
        return True

    def _forget(self, node: str) -> None:
        self.prefixes.remove_node(node)
        self.speeds.remove_node(node)
        for table in (self._loads, self._lags, self._asked, self._classes):
            table.pop(node, None)


def _speed_class(member: Member) -> str:
    """Return the class of a node; those of one class share a curve."""
    return f"{member.model} {member.runner} {member.numeric_build}"


def _differ(curve: NodeSpeed, other: NodeSpeed) -> bool:
    """Return whether a coefficient is another by more than what is looked over."""
    return any(
        abs(new - old) > CURVE_CHANGE * old
        for new, old in zip(curve.coefficients, other.coefficients, strict=True)
    )
