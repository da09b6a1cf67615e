"""Regions and nodes as a page follows them: rounded to what is shown, and sent as they change."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct, structs

from skerry_regions.region.region_figures import SeenFleet, SeenNode, SeenRegion
from skerry_regions.wire.reports import EngineWork

GONE_SECONDS = 60.0  # that a node which is gone is shown as such


class NodeRow(Struct, frozen=True, kw_only=True):
    """One node on a page. Shares are percent; None: not known."""

    id: str
    region: str
    role: str
    model: str
    state: str
    streams: int
    queue: float  # milliseconds
    busy: int | None  # since the last look
    kv: int | None  # of its blocks
    hits: int | None  # of the tokens that were looked up, since its start


class RegionRow(Struct, frozen=True, kw_only=True):
    """One region on a page. Times are milliseconds."""

    name: str
    place: tuple[float, float] | None
    rtt: float | None
    queue: float | None
    nodes: int
    state: str


class FleetChannel:
    """What an edge sees of the platform. `clock` gives seconds."""

    def __init__(self, look: Callable[[], SeenFleet], clock: Callable[[], float]) -> None:
        self._look = look
        self._clock = clock
        self._looked_at: float | None = None
        self._region = ""
        self._nodes: dict[str, NodeRow] = {}
        self._regions: dict[str, RegionRow] = {}
        self._work: dict[str, EngineWork] = {}
        self._gone: dict[str, float] = {}  # by node: when it is forgotten

    def snapshot(self) -> Mapping[str, object]:
        """See `Channel`."""
        if self._looked_at is None:
            self.news()
        return {
            "region": self._region,
            "nodes": list(self._nodes.values()),
            "regions": list(self._regions.values()),
        }

    def news(self) -> Mapping[str, object]:
        """See `Channel`: rows that are another than before, and names of those that are gone."""
        seen, now = self._look(), self._clock()
        seconds = 0.0 if self._looked_at is None else now - self._looked_at
        nodes = {each.id: self._node(each, seconds) for each in seen.nodes}
        regions = {each.name: _region(each) for each in seen.regions}
        for name in self._nodes.keys() - nodes.keys():
            if now < self._gone.setdefault(name, now + GONE_SECONDS):
                nodes[name] = _lost(self._nodes[name])
        news: dict[str, object] = {}
        for name, new, old in (
            ("nodes", nodes, self._nodes), ("regions", regions, self._regions),
        ):  # fmt: skip
            if changed := [row for key, row in new.items() if old.get(key) != row]:
                news[name] = changed
            if gone := sorted(old.keys() - new.keys()):
                news[f"gone_{name}"] = gone
        self._region, self._looked_at, self._nodes, self._regions = seen.region, now, nodes, regions
        self._work = {each.id: each.work for each in seen.nodes if each.work is not None}
        self._gone = {each: until for each, until in self._gone.items() if each in nodes}
        for each in seen.nodes:
            self._gone.pop(each.id, None)  # it came back
        return news

    def close(self) -> None:
        """See `Channel`."""

    def _node(self, node: SeenNode, seconds: float) -> NodeRow:
        work, before = node.work, self._work.get(node.id)
        busy = None
        if work is not None and before is not None and seconds > 0:
            spent = work.busy_seconds - before.busy_seconds
            busy = _percent(spent, seconds) if spent >= 0 else None  # it was started again
        return NodeRow(
            id=node.id,
            region=node.region,
            role=node.role,
            model=node.model,
            state=node.state,
            streams=node.streams,
            queue=round(node.queue_seconds * 1e3, 1),
            busy=busy,
            kv=None if work is None else _percent(work.blocks_used, work.blocks),
            hits=None if work is None else _percent(work.hit_tokens, work.looked_up_tokens),
        )


def _lost(row: NodeRow) -> NodeRow:
    return structs.replace(row, state="down", streams=0, queue=0.0, busy=None, kv=None, hits=None)


def _region(region: SeenRegion) -> RegionRow:
    return RegionRow(
        name=region.name,
        place=region.place,
        rtt=None if region.rtt is None else round(region.rtt * 1e3, 1),
        queue=None if region.queue_seconds is None else round(region.queue_seconds * 1e3, 1),
        nodes=region.nodes,
        state="ready" if region.is_up else "down",
    )


def _percent(part: float, whole: float) -> int | None:
    return round(min(100.0, 100 * part / whole)) if whole > 0 else None
