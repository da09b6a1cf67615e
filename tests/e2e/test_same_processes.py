"""A topology's supervisor and the control plane start the same processes for the same file."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import httpx
import pytest
from tests.e2e.command import MODEL, Skerry, new_home
from tests.e2e.control_client import ControlPlane

from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

TLS = Path(__file__).parents[1] / "edge" / "data" / "tls"
FILE = f"""\
regions:
  - {{name: fra, iata: FRA, residency: eu}}
  - {{name: iad, iata: IAD}}
pools:
  - {{name: prefill, region: fra, role: prefill, model: "{MODEL}", runner: toy, threads: 1,
      kv_blocks: 128, file_tier: none}}
  - {{name: decode, region: iad, role: decode, model: "{MODEL}", runner: toy, threads: 1,
      replicas: 2}}
edges:
  - {{name: plain, region: iad, placement: nearest, hosts: [ai.test]}}
  - {{name: secure, region: fra, url: "https://ai.test", tls: {{cert: "{TLS}/first.pem",
      key: "{TLS}/first.key"}}}}
warm_up:
  - {{model: "{MODEL}", system_prompts: ["You are the harbour master of a small port."]}}
"""
PLACES = {"--address", "--transfer", "--control", "--gateway", "--topology", "--warm-up"}
"""Files and sockets: each supervisor has its own."""
THEIR_OWN = {"--lifeline-fd", "--listener-fd", "--placed", "--known-host"}
"""How a supervisor hears of a process, and tells it what the other one lets it read."""


def options_of(pid: int) -> dict[str, str]:
    """Return what a process was started with, but for what has to differ."""
    words = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")[3:]
    found = {"": words.pop(0)}
    while words:
        name = words.pop(0)
        found[name] = words.pop(0) if words and not words[0].startswith("--") else ""
    kept = {name: value for name, value in found.items() if name not in THEIR_OWN}
    return {name: "" if name in PLACES else value for name, value in kept.items()}


def by_topology(skerry: Skerry, file: Path) -> dict[str, dict[str, str]]:
    done = skerry("up", "--detach", "--topology", str(file))
    assert done.returncode == 0, done.stderr
    status = skerry.status()
    found = {each["id"]: options_of(each["pid"]) for each in [*status["nodes"], *status["edges"]]}
    assert status["edges"][1]["url"] == "https://ai.test"
    assert skerry("down", "--timeout", "30").returncode == 0
    return found


def by_control_plane(skerry: Skerry, file: Path) -> dict[str, dict[str, str]]:
    control = ControlPlane(skerry)
    try:
        done = skerry("apply", "-f", str(file))
        assert done.returncode == 0, done.stderr
        assert "nothing about" not in done.stderr
        for edge in ("plain", "secure"):
            control.until_ready(f"edge_nodes/{edge}")
        for pool in ("fra-prefill", "iad-decode"):
            control.until_ready(f"pools/{pool}")
        answers_by_tls(control)
        nodes = control.nodes()
        return {each["owner"] + id.removeprefix(each["owner"]): options_of(each["pid"])
                for id, each in nodes.items()}  # fmt: skip
    finally:
        control.stop()


def answers_by_tls(control: ControlPlane) -> None:
    """The edge has the certificate that the file names, and is called what the file says."""
    edge = control.get("edge_nodes/secure")
    assert edge["status"]["url"] == "https://ai.test"
    record = json.loads((control.skerry.home / "run/launched/secure-0.json").read_text())
    context = ssl.create_default_context(cafile=str(TLS / "first.pem"))
    context.check_hostname = False
    url = f"https://{record['address'].removeprefix('tcp:')}/healthz"
    assert httpx.get(url, verify=context).status_code == 200


@pytest.mark.timeout(300)
def test_both_start_the_same(tmp_path: Path, default_model: ModelFiles) -> None:
    skerry, file = new_home(tmp_path, default_model), tmp_path / "platform.yaml"
    file.write_text(FILE)
    one, other = by_topology(skerry, file), by_control_plane(skerry, file)
    edges = {f"{name}-0": one.pop(name) for name in ("plain", "secure")}
    for options in edges.values():  # numbered, for a moment two of an edge run
        options["--id"] += "-0"
    for name in edges:
        assert other[name].pop("--hold") == ""  # its pools may be asleep
    assert one | edges == other
