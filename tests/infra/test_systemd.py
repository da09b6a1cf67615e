"""systemd units: what they start exists, stopping leaves time to drain, and they are shut in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tools import program

from skerry_cli import build_parser
from skerry_cli.composition import control_child, serve_gateway, serve_machines
from skerry_cli.home.state import Home
from skerry_cli.platform import lifecycle
from skerry_cli.roles import node
from skerry_edge.limits import Limits
from skerry_regions.control.planning import plan
from skerry_regions.control.reconcile import host_agent
from skerry_regions.node import process as node_process
from skerry_regions.topology.spec import MAX_STEER_DRAIN_SECONDS

FOLDER = Path(__file__).parents[2] / "infra" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
NAMES = [unit.stem for unit in UNITS]
SKERRY = "/opt/skerry/bin/skerry"
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "ProtectKernelTunables": "yes",
    "ProtectKernelModules": "yes",
    "ProtectControlGroups": "yes",
    "RestrictNamespaces": "yes",
    "RestrictSUIDSGID": "yes",
    "SystemCallFilter": "@system-service",
    "UMask": "0077",
    "User": "skerry",
}


def settings(unit: str) -> dict[str, str]:
    lines = (FOLDER / f"{unit}.service").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if re.match(r"[A-Z]\w*=", line))


def test_there_are_five() -> None:
    assert NAMES == ["skerry-control", "skerry-edge", "skerry-host", "skerry-node", "skerry"]


@pytest.mark.parametrize("unit", NAMES)
def test_what_is_started_is_a_command(unit: str) -> None:
    program, *arguments = settings(unit)["ExecStart"].replace("$SKERRY_OPTIONS", "").split()
    assert program == SKERRY
    build_parser().parse_args(arguments)


@pytest.mark.parametrize("unit", NAMES)
def test_they_are_shut_in(unit: str) -> None:
    found = settings(unit)
    assert HARDENED.items() <= found.items()
    assert found["CapabilityBoundingSet"] in ("", "CAP_NET_BIND_SERVICE")


def test_stopping_leaves_time_to_drain() -> None:
    drain = node.DRAIN_SECONDS + node_process.CLOSE_SECONDS
    assert drain < float(settings("skerry-node")["TimeoutStopSec"])
    leaving = host_agent.LEAVE_SECONDS + plan.DRAIN_SECONDS
    assert leaving < float(settings("skerry-host")["TimeoutStopSec"])
    streams = Limits().drain_seconds + serve_gateway.DRAIN_SECONDS
    assert streams < float(settings("skerry-edge")["TimeoutStopSec"])
    edges = plan.EDGE_END_SECONDS + MAX_STEER_DRAIN_SECONDS
    launched = edges + 2 * plan.END_SECONDS + serve_machines.DRAIN_SECONDS
    assert launched < control_child.STOP_SECONDS
    assert control_child.STOP_SECONDS + streams < float(settings("skerry")["TimeoutStopSec"])
    api_and_machines = 2 * serve_machines.DRAIN_SECONDS
    assert api_and_machines < float(settings("skerry-control")["TimeoutStopSec"])


def test_the_platform_has_one_time_to_stop_in() -> None:
    root = FOLDER.parents[1]
    told = [settings("skerry")["TimeoutStopSec"], f"{lifecycle.DRAIN_SECONDS:g}"]
    told += re.findall(r"--time (\d+)", (root / "infra/container/Containerfile").read_text())
    guide = (root / "docs" / "install.md").read_text()
    told += re.findall(r"--stop-timeout (\d+)", guide)
    told += re.findall(r"(\d+) s for `skerry.service`", guide)
    assert told == ["220"] * 5


@pytest.mark.parametrize("unit", ["skerry-edge", "skerry-node"])
def test_sigterm_goes_to_the_main_process_alone(unit: str) -> None:
    found = settings(unit)
    assert (found["KillMode"], found["KillSignal"]) == ("mixed", "SIGTERM")


@pytest.mark.parametrize("unit", ["skerry-edge", "skerry-host", "skerry-node"])
def test_a_machine_without_a_token_is_not_started_again_and_again(unit: str) -> None:
    found = settings(unit)
    *_, token_file, _ = found["ExecStart"].split()
    assert found["ConditionFileNotEmpty"] == f"|{token_file}"
    home = Home(Path(found["Environment"].partition("=")[2]))
    assert found["ConditionPathExists"] == f"|{home.machine}/machine.json"


@pytest.mark.parametrize("unit", ["skerry", "skerry-control", "skerry-host"])
def test_what_a_supervisor_has_started_outlives_it(unit: str) -> None:
    found = settings(unit)
    assert (found["KillMode"], found["KillSignal"]) == ("process", "SIGTERM")
    assert "--own" not in found["ExecStart"]


@pytest.mark.parametrize("unit", UNITS, ids=NAMES)
def test_systemd_takes_them(unit: Path, tmp_path: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(SKERRY, sys.executable))
    done = subprocess.run(
        [program("systemd-analyze", "systemd"), "verify", "--man=no", str(copy)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    subprocess.run(  # 0 is shut in, 100 is root
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(copy)],
        capture_output=True, check=True,
    )  # fmt: skip
