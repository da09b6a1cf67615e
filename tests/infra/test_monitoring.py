"""Dashboard and alert rules ask only for metrics that the processes expose."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.dns.example import responder
from tests.infra.alert_series import FAULTS
from tests.regions.control.support import Unseeing
from tests.tools import program

from skerry_core.engine.figures import Statistics
from skerry_dns.server.dns_metrics import DnsMetrics
from skerry_dns.server.dns_server import DnsServer
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_regions.control.api.operations import OPERATIONS
from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.reconcile.control_metrics import ControlMetrics
from skerry_regions.node.metrics import NodeMetrics
from skerry_regions.prometheus import Metric, exposition
from skerry_regions.registry import Member

FOLDER = Path(__file__).parents[2] / "infra" / "monitoring"
NAME = re.compile(r"\b(?:vllm:|skerry_)\w+")
GROWTH = re.compile(r"\b(?:rate|increase)\(((?:vllm:|skerry_)\w+)(?:{([^}]*)})?\[")
SELECTOR = re.compile(r"(\w+)(=~?)\"([^\"]*)\"")
MODEL = "@cf/a/model"
STANDING = Statistics(**{each.name: int(each.name == "blocks") for each in fields(Statistics)})


def families() -> dict[str, Metric]:
    """Of an edge, a node, a control plane and a DNS server, by name: as at their start."""
    seer = Unseeing()
    seer.members = (Member(id="a", kind="node", region="r"),)
    control = ControlMetrics(seer, lambda: Desired(0, {}), None, dict).families()
    edge, node = EdgeMetrics(models=[MODEL]), NodeMetrics(lambda: {MODEL: STANDING})
    dns = DnsMetrics(DnsServer(responder()))
    parts = (edge.families(), node.families(), control, dns.families())
    return {metric.name: metric for part in parts for metric in part}


def samples() -> set[str]:
    """Names of everything that can be asked for."""
    names = set(families())
    for name, metric in families().items():
        if metric.kind == "histogram":
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return names


def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    content = json.loads((FOLDER / "dashboard.json").read_text())
    return [panel for panel in content["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])


def test_every_metric_that_is_asked_for_is_exposed() -> None:
    asked = {name for expression in expressions() for name in NAME.findall(expression)}
    assert asked - samples() == set()
    assert len(asked) > 25


def test_every_label_that_is_asked_for_exists() -> None:
    """Inside braces and behind `by`: those of the metrics, and what a scrape adds."""
    scraped = {"le", "job", "instance", "home_region"}
    known = scraped.union(*(metric.labels for metric in families().values()))
    for expression in expressions():
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
        for group in re.findall(r"by \(([^)]*)\)", expression):
            labels |= {label.strip() for label in group.split(",")}
        assert labels <= known, expression


def test_what_alerts_see_grow_is_at_zero_from_the_start() -> None:
    """A series that appears at 2 has no increase: of two best-effort resumes no alert would be.

    Routes and statuses are too many, and histograms of models too long: their rules look at shares
    and quantiles over minutes, in which what came first does not count."""
    found = text_string_to_metric_families(exposition(families().values()).decode())
    zeros = [each for family in found for each in family.samples if each.value == 0]
    asked = {growth for rule in rules() for growth in GROWTH.findall(rule["expr"])}
    seen: set[str] = set()
    for name, selectors in asked:
        if name == "skerry_http_requests_total" or name.endswith("_bucket"):
            continue
        wanted = SELECTOR.findall(selectors)
        assert len(wanted) == selectors.count("="), selectors
        for label, values in ((label, value.split("|")) for label, _, value in wanted):
            there = {each.labels[label] for each in zeros if each.name == name}
            assert there.issuperset(values), (name, label)
        assert any(each.name == name for each in zeros), name
        seen.add(name)
    assert len(seen) == 8


def test_rules_say_what_is_wrong_and_how_bad_it_is() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))


def test_panels_are_whole_and_do_not_overlap() -> None:
    content = json.loads((FOLDER / "dashboard.json").read_text())
    ids = [panel["id"] for panel in content["panels"]]
    assert len(ids) == len(set(ids))
    cells: set[tuple[int, int]] = set()
    for panel in content["panels"]:
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in covered) < 24
        assert not cells & covered, panel["title"]
        cells |= covered
    for panel in panels():
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert all(target["legendFormat"] for target in panel["targets"])


def test_what_wants_a_token_gets_it() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    asked = {each["job_name"]: each.get("authorization") for each in config["scrape_configs"]}
    token = {"type": "Bearer", "credentials_file": "/etc/prometheus/skerry.token"}
    assert asked == {"skerry": token, "skerry-dns": None}
    [discovery] = config["scrape_configs"][0]["http_sd_configs"]
    assert discovery["authorization"] == token
    path = discovery["url"].removeprefix("http://127.0.0.1:8788")
    assert path in {operation.path for operation in OPERATIONS}


@pytest.mark.parametrize("alert", [*FAULTS, "no alert"])
def test_an_alert_fires_in_its_fault_and_no_other_does(alert: str, tmp_path: Path) -> None:
    faults = [*FAULTS.items()]
    series = [
        {"series": name, "values": values}
        for each, (fault, health, _) in faults
        for name, values in (fault if each == alert else health).items()
    ]
    expected: dict[str, list[dict[str, Any]]] = {each: [] for each in FAULTS}
    if alert in FAULTS:
        [rule] = [rule for rule in rules() if rule["alert"] == alert]
        expected[alert] = [{"exp_labels": FAULTS[alert][2] | rule["labels"]}]
    (tmp_path / "alerts.yml").write_text(without_annotations((FOLDER / "alerts.yml").read_text()))
    test = {
        "rule_files": ["alerts.yml"],
        "tests": [{
            "interval": "1m",
            "input_series": series,
            "alert_rule_test": [
                {"eval_time": "30m", "alertname": name, "exp_alerts": alerts}
                for name, alerts in expected.items()
            ],
        }],
    }  # fmt: skip
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [program("promtool", "prometheus", alone=True), "test", "rules", "test.yml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_its_fault() -> None:
    assert [rule["alert"] for rule in rules()] == [*FAULTS]


def without_annotations(text: str) -> str:
    """The rules as they are but for their sentences, which tests would have to spell."""
    content = yaml.safe_load(text)
    for group in content["groups"]:
        for rule in group["rules"]:
            del rule["annotations"]
    return yaml.safe_dump(content)


@pytest.mark.parametrize("check", [("rules", "alerts.yml"), ("config", "prometheus.yml")])
def test_prometheus_takes_them(check: tuple[str, str], tmp_path: Path) -> None:
    kind, file = check
    token = tmp_path / "skerry.token"  # promtool wants to see it
    token.touch()
    for each in FOLDER.glob("*.yml"):
        told = each.read_text().replace("/etc/prometheus/skerry.token", str(token))
        (tmp_path / each.name).write_text(told)
    done = subprocess.run(
        [program("promtool", "prometheus", alone=True), "check", kind, str(tmp_path / file)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
