"""docs/telemetry.md lists every metric that the processes expose, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.dns.example import responder
from tests.regions.control.support import Unseeing

from skerry_dns.server.dns_metrics import DnsMetrics
from skerry_dns.server.dns_server import DnsServer
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.reconcile.control_metrics import ControlMetrics
from skerry_regions.node.metrics import NodeMetrics
from skerry_regions.prometheus import Metric

PAGE = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
ROW = re.compile(r"^\| `([\w:]+)` \| (\w+) \| ([^|]*) \| (yes|) \| (yes|) \|", re.MULTILINE)
DNS_ROW = re.compile(r"^\| `(skerry_dns_\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)
CONTROL_ROW = re.compile(
    r"^\| `(skerry_(?:control|process)_\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE
)

Row = tuple[str, tuple[str, ...]]  # kind and labels


def rows(metrics: list[Metric]) -> dict[str, Row]:
    return {metric.name: (metric.kind, metric.labels) for metric in metrics}


def test_the_table_of_metrics() -> None:
    listed: dict[str, dict[str, Row]] = {"edge": {}, "node": {}}
    for name, kind, labels, on_edge, on_node in ROW.findall(PAGE):
        row = kind, tuple(re.findall(r"`(\w+)`", labels))
        if on_edge:
            listed["edge"][name] = row
        if on_node:
            listed["node"][name] = row
    assert listed["edge"] == rows(EdgeMetrics().families())
    assert listed["node"] == rows(NodeMetrics(dict).families())


class Following:
    is_leading, term, sequence, seconds_behind = False, 0, 7, 0.1


def test_the_table_of_the_control_planes_metrics() -> None:
    families = ControlMetrics(
        Unseeing(), lambda: Desired(0, {}), None, dict, Following()
    ).families()
    shared = rows(EdgeMetrics().families())
    listed = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in CONTROL_ROW.findall(PAGE)
    }
    assert listed == {name: row for name, row in rows(families).items() if name not in shared}


def test_the_table_of_dns_metrics() -> None:
    listed = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in DNS_ROW.findall(PAGE)
    }
    assert listed == rows(DnsMetrics(DnsServer(responder())).families())
