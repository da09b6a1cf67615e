"""`skerry status` and `skerry top` of what the control plane runs, at 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from skerry_cli import main
from skerry_cli.composition.topology_status import troubles
from skerry_cli.home.control import EngineFigures, NodeStatus, Status
from skerry_cli.home.control_home import claim_control
from skerry_cli.home.platform_client import ControlView, PlatformClient, PlatformError
from skerry_cli.home.state import Config, Home, write_config
from skerry_cli.observe.overview import overview, with_launched
from skerry_cli.observe.status import control_text
from skerry_cli.observe.top import render
from skerry_cli.tables import table
from skerry_regions.control.reconcile.failures import Failures

MODEL = "@cf/huggingfacetb/smollm2-135m-instruct"


def resource(id: str, phase: str, message: str = "", **fields: Any) -> dict[str, Any]:
    condition = {"type": "Ready", "status": phase == "ready", "message": message}
    return fields | {"id": id, "status": {"phase": phase, "conditions": [condition]}}


def pool(id: str, phase: str, ready: int, message: str = "") -> dict[str, Any]:
    made = resource(id, phase, message, role="decode", runner="numba", model=MODEL)
    made["status"] |= {"ready_replicas": ready, "desired_replicas": 2}
    return made


def process(id: str, kind: str, **fields: Any) -> dict[str, Any]:
    return fields | {
        "id": id, "kind": kind, "region": "fra", "pid": 7, "state": "ready", "updated": True,
        "streams": 3, "role": "decode" if kind == "node" else None, "control": "",
    }  # fmt: skip


REGION = resource("fra", "degraded", residency="eu")
REGION["status"] |= {"ready_nodes": 3, "desired_nodes": 4}
EDGE = resource("edge-fra", "ready", region="fra")
EDGE["status"]["url"] = "http://127.0.0.1:8787"
DEPLOYMENT = resource("chat", "ready", model=MODEL)
DEPLOYMENT["status"]["regions"] = ["fra"]
VIEW = ControlView(
    url="http://127.0.0.1:8788",
    revision=17,
    observed_revision=15,
    regions=[REGION],
    pools=[pool("fra-decode", "ready", 2), pool("fra-lost", "degraded", 0, "5007 No such model")],
    edge_nodes=[EDGE],
    deployments=[DEPLOYMENT],
    nodes=[
        process("fra-decode-0", "node", model=MODEL),
        process("edge-fra-0", "edge", address="http://127.0.0.1:8787", model=""),
    ],
)


def test_all_that_the_control_plane_runs_is_shown_in_80_columns() -> None:
    lines = control_text(VIEW).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line.split() for line in lines]
    assert ["fra", "degraded", "3/4", "eu"] in rows
    assert ["fra-decode", "ready", "2/2", "decode", "numba", "smollm2-135m-instruct"] in rows
    assert ["edge-fra", "ready", "fra", "http://127.0.0.1:8787"] in rows
    assert ["chat", "ready", "smollm2-135m-instruct", "fra"] in rows
    assert ["fra-decode-0", "ready", "3", "7"] in rows
    assert "(revision 17, done: 15)" in lines[0]
    assert VIEW.troubles() == ["pool fra-lost is degraded: 5007 No such model"]
    failing = [{"kind": "dns_zone", "id": "ai.test", "message": "its port is taken"},
               {"kind": "pool", "id": "fra-lost", "message": "is degraded anyway"}]  # fmt: skip
    told = replace(VIEW, failing=failing).troubles()
    assert told == ["dns_zone ai.test: its port is taken", *VIEW.troubles()]


def test_long_names_are_cut_and_numbers_are_not() -> None:
    shown = table(("*NAME", ">COUNT", "*MODEL"), [["n" * 50, "12345", "m" * 90]], 40)
    name, count, model = shown.splitlines()[1].split()
    assert (len(name), count, len(model)) == (15, "12345", 16)
    assert (name[-1], model[-1]) == ("…", "…")


def test_top_shows_it_too_in_80_columns() -> None:
    own = NodeStatus("node-1", 1, "hybrid", "local", MODEL, "ready", 1, engine=EngineFigures())
    status = with_launched(Status(url="http://u", edges=[], nodes=[own], control=VIEW))
    assert [node.id for node in status.nodes] == ["node-1", "fra-decode-0"]
    assert [edge.url for edge in status.edges] == ["http://127.0.0.1:8787"]
    engine = EngineFigures(running=1, blocks=8, blocks_used=2)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(render(overview(status, [engine, engine], [{"fra": 0.0008}], 1.0, None)))
    text = captured.get()
    for expected in ("smollm2-135m-", "fra-decode-0", "25 %", "0.8 ms", "waiting"):
        assert expected in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_homes_token_goes_to_the_homes_control_plane_only(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with pytest.raises(PlatformError, match="no control plane has run here"):
        PlatformClient.from_environ(home, {})
    write_config(home, Config(account_id="a", api_token="ours", control_url="http://c:1"))
    ours = PlatformClient.from_environ(home, {"SKERRY_CONTROL_URL": "http://c:1/"})
    assert ours == PlatformClient("http://c:1", "ours")
    elsewhere = {"SKERRY_CONTROL_URL": "https://other"}
    with pytest.raises(PlatformError, match="set SKERRY_API_TOKEN to a token of https://other"):
        PlatformClient.from_environ(home, elsewhere)
    given = PlatformClient.from_environ(home, elsewhere | {"SKERRY_API_TOKEN": "theirs"})
    assert (given.url, given.token) == ("https://other", "theirs")


def test_a_control_plane_that_does_not_answer_is_noted_beside_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path))
    config = Config(account_id="a", api_token="ours", control_url="http://127.0.0.1:1")
    write_config(Home(tmp_path), config)
    with claim_control(Home(tmp_path)):
        assert main(["status", "--json"]) == 1
    printed = capsys.readouterr()
    assert "control" not in json.loads(printed.out)
    assert printed.err.startswith("the control plane: http://127.0.0.1:1 does not answer")


def test_skerry_alone_is_help_and_errors_have_no_number_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 0
    assert "first minute:" in capsys.readouterr().out
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path))
    for name in ("BASE_URL", "API_TOKEN", "ACCOUNT_ID"):
        monkeypatch.delenv(f"SKERRY_{name}", raising=False)
    assert main(["run", MODEL, "Why?"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("skerry: ")
    assert "0:" not in told


@pytest.mark.parametrize(
    ("ends", "last", "runs", "told"),
    [
        (1, -9, True, ["n-0: restarted once, last by SIGKILL; see h/logs/n-0.log"]),
        (6, 1, True, [
            "n-0: restarted 6 times, last with status 1, in a crash loop; see h/logs/n-0.log"
        ]),
        (1, 2, False, ["n-0: ended, last with status 2; see h/logs/n-0.log"]),
        (0, None, True, []),
    ],
)  # fmt: skip
def test_how_a_process_ended_is_told_in_words(
    ends: int, last: int | None, runs: bool, told: list[str]
) -> None:
    failures = Failures(Random(1))
    for _ in range(ends):
        failures.failed("n-0", "n", 0.1, "it ended", 0.0, last)
    assert troubles(failures, {"n-0"} if runs else set(), Home(Path("h"))) == told
