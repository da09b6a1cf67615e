"""`skerry get`, `apply`, `delete`, `history` and `rollback` with a real control plane."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.e2e.command import MODEL, Skerry
from tests.e2e.control.control_client import ControlPlane

from skerry_cli import main

FILE = f"""\
regions:
  - {{name: fra, iata: FRA}}
  - {{name: gru, coordinates: [-23.43, -46.47], residency: br}}
pools:
  - {{name: decode, region: fra, role: decode, model: "{MODEL}", runner: toy, replicas: 0}}
  - {{name: nap, region: gru, role: hybrid, max_replicas: 2, kv_blocks: 64}}
links:
  - {{between: [fra, gru], rtt: 0.2}}
edges:
  - {{name: edge, region: gru, tls: {{cert: /c.pem, key: /k.pem}}, url: "https://ai.example.com",
      placement: nearest, draining: true}}
deployments:
  - {{name: chat, model: "{MODEL}", pools: [gru-nap], system_prompts: ["You are a tide table."]}}
"""
ALL = ["region fra", "region gru", "pool fra-decode", "pool gru-nap", "edge edge",
       "deployment chat"]  # fmt: skip


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    home = tmp_path_factory.mktemp("control") / "home"
    home.mkdir(mode=0o700)
    control = ControlPlane(Skerry(home))
    yield control
    control.stop()


@pytest.fixture
def file(control: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file, and commands in the home of the control plane; it runs nothing afterwards."""
    for name in ("SKERRY_CONTROL_URL", "SKERRY_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SKERRY_HOME", str(control.skerry.home))
    path = tmp_path / "platform.yaml"
    path.write_text(FILE)
    yield path
    assert main(["rollback", "0"]) == 0


Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *arguments: str, status: int = 0) -> tuple[list[str], str]:
    """Run a command; the lines of its answer, and what it says beside."""
    capsys.readouterr()
    assert main(arguments) == status, capsys.readouterr().err
    told = capsys.readouterr()
    if "--json" not in arguments:
        assert all(len(line) <= 80 for line in told.out.splitlines()), told.out
    return told.out.splitlines(), told.err


def test_a_file_is_applied_once(file: Path, capsys: Captured) -> None:
    lines, told = run(capsys, "apply", "-f", str(file), "--dry-run")
    assert (lines, "--dry-run" in told) == ([f"+ {each}" for each in ALL], True)
    assert run(capsys, "apply", "-f", str(file))[0] == lines
    lines, told = run(capsys, "apply", "-f", str(file))
    assert (lines, told) == ([], "Nothing changes: all of it is so already.\n")
    file.write_text(FILE.replace("replicas: 0", "threads: 3"))
    lines, _ = run(capsys, "apply", "-f", str(file))
    assert lines == ["~ pool fra-decode", "    threads: null -> 3", "    replicas: 0 -> null"]


def test_what_is_written_down_is_shown_and_can_be_applied_again(
    file: Path, capsys: Captured
) -> None:
    run(capsys, "apply", "-f", str(file))
    lines, _ = run(capsys, "get")
    assert [lines[5].split()[i] for i in (0, 3, 4)] == ["fra-decode", "decode", "toy"]
    assert {line.split()[0] for line in lines if line} >= {"fra", "gru", "gru-nap", "chat"}
    lines, _ = run(capsys, "get", "pool", "gru-nap")
    assert yaml.safe_load("\n".join(lines))["max_replicas"] == 2
    assert json.loads(run(capsys, "get", "pools", "--json")[0][0])[0]["id"] == "fra-decode"

    lines, _ = run(capsys, "get", "--yaml")
    assert yaml.safe_load("\n".join(lines)) == yaml.safe_load(FILE)
    file.write_text("\n".join(lines))
    run(capsys, "rollback", "0")
    assert run(capsys, "apply", "-f", str(file))[0] == [f"+ {each}" for each in ALL]


def test_a_mistake_is_named_with_its_line(file: Path, capsys: Captured) -> None:
    for wrong, told in (
        (FILE.replace("iata: FRA", "iata: ZZZ"), f"{file}:2: regions[0].iata: "),
        (FILE.replace("region: gru", "region: ams"), f"{file}:6: pools[1].region: there is no"),
        (FILE.replace("name: nap", "nmae: nap"), f"{file}:6: pools[1].nmae: no such key"),
        (FILE.replace("pools: [gru-nap]", "pools: [a-b]"), f"{file}:13: deployments[0].pools[0]: "),
    ):
        file.write_text(wrong)
        assert told in run(capsys, "apply", "-f", str(file), status=1)[1]
    assert run(capsys, "get")[0] == []


def test_history_and_back(control: ControlPlane, file: Path, capsys: Captured) -> None:
    run(capsys, "apply", "-f", str(file))
    control.patch("pools/fra-decode", threads=2)
    lines, _ = run(capsys, "history", "--limit", "2")
    assert lines[0].split() == ["REVISION", "WHEN", "WHO", "WHAT"]
    assert lines[1].endswith("~ fra-decode")
    assert " skerry up " in f" {' '.join(lines[2].split()[3:])} ", "the name of its token"
    assert lines[2].endswith("6 created")
    assert run(capsys, "rollback")[0] == ["~ pool fra-decode", "    threads: 2 -> null"]
    revision = lines[1].split()[0]
    assert run(capsys, "rollback", revision)[0][1] == "    threads: null -> 2"
    assert "there is no revision 99999" in run(capsys, "rollback", "99999", status=1)[1]


def test_deleting(file: Path, capsys: Captured) -> None:
    run(capsys, "apply", "-f", str(file))
    refused = run(capsys, "delete", "region", "fra", status=1)[1]
    assert refused == "skerry: region 'fra' is still used by pool 'fra-decode'\n"
    assert run(capsys, "delete", "region", "fra", "--dry-run", status=1)[1] == refused
    assert "there is no pool 'nope'" in run(capsys, "delete", "pool", "nope", status=1)[1]
    assert run(capsys, "delete", "deployment", "chat")[0] == ["- deployment chat"]
    trial, told = run(capsys, "delete", "-f", str(file), "--dry-run")
    assert "--dry-run" in told
    assert [line.split()[2] for line in trial if "chat" not in line] == [
        "gru-nap", "fra-decode", "edge", "gru", "fra",
    ]  # fmt: skip
    assert len(run(capsys, "get")[0]) > 1
    assert run(capsys, "delete", "-f", str(file))[0] == trial
    assert "name a kind and ids" in run(capsys, "delete", status=1)[1]


def test_roles_hold(control: ControlPlane, file: Path, capsys: Captured,
                    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    made = control.http.post("/api_tokens", json={"name": "eyes", "role": "viewer"}).json()
    monkeypatch.setenv("SKERRY_API_TOKEN", made["secret"])
    assert run(capsys, "get")[0] == []
    told = run(capsys, "apply", "-f", str(file), status=1)[1]
    assert told == "skerry: Your role does not include the right to operate here.\n"
    monkeypatch.delenv("SKERRY_API_TOKEN")
