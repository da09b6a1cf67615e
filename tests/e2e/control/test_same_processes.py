"""A topology's supervisor and the control plane start the same processes for the same file."""

from __future__ import annotations

import json
import re
import ssl
from pathlib import Path

import httpx
import pytest
from tests.e2e.command import MODEL, ROOT, Skerry, new_home, until
from tests.e2e.control.control_client import ControlPlane

from skerry import AI
from skerry_regions.control.planning.launcher import SILENT
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.process.launch_folder import LaunchFolder
from skerry_regions.topology.loading import load_topology
from skerry_regions.topology.spec import Topology

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

TLS = Path(__file__).parents[2] / "edge" / "data" / "tls"
FILE = f"""\
regions:
  - {{name: fra, iata: FRA, residency: eu}}
  - {{name: iad, iata: IAD}}
pools:
  - {{name: prefill, region: fra, role: prefill, model: "{MODEL}", runner: toy, threads: 1,
      kv_blocks: 128, file_tier: none}}
  - {{name: decode, region: iad, role: decode, model: "{MODEL}", runner: toy, replicas: 2}}
edges:
  - {{name: plain, region: iad, placement: nearest, hosts: [ai.test]}}
  - {{name: secure, region: fra, url: "https://ai.test", tls: {{cert: "{TLS}/first.pem",
      key: "{TLS}/first.key"}}}}
emulate: {{rtt: links}}
steer: {{policy: advise}}
warm_up:
  - {{model: "{MODEL}", system_prompts: ["You are the harbour master of a small port."]}}
"""
EXAMPLES = [
    path
    for path in sorted((ROOT / "examples").glob("*.yaml"))
    if "traffic:" not in path.read_text()  # else it is for `skerry simulate`
]
ELSEWHERE = re.compile(r"(unix:)?/\S*(/run/|/skerry-\d+-)\S*")
"""Files and sockets: each supervisor has its own."""
THEIR_OWN = {"--lifeline-fd", "--listener-fd", "--placed"}
"""How a supervisor hears of a process, and what one lets it read beside the registry."""

SERVER = ("dns", "dns", "")
Found = dict[tuple[str, str, str], list[list[str]]]
"""Command lines by kind, owner and region of the process."""


def found_in(folder: LaunchFolder, topology: Topology) -> Found:
    """Return what runs, with pools and edges for owners: a topology's supervisor owns each."""
    pools = {node: f"{p.region}-{p.name}" for p in topology.pools for node in p.node_names()}
    found: Found = {}
    for record, pid in folder.running():
        owner = record.kind if record.kind in SILENT else pools.get(record.owner, record.owner)
        key = record.kind, owner, record.region
        words = words_of(pid)
        if record.kind == "edge":  # numbered, where for a moment two of an edge run
            words = [record.owner if word == record.id else word for word in words]
        found.setdefault(key, []).append(words)
    return {key: sorted(lines) for key, lines in found.items()}


def words_of(pid: int) -> list[str]:
    """Return what a process was started with, but for what has to differ."""
    command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0")
    options = re.split(r"\0(?=--)", command)
    kept = [each for each in options if each.partition("\0")[0] not in THEIR_OWN]
    words = " ".join(kept).replace("\0", " ").split()
    return [ELSEWHERE.sub("…", each) for each in words]


def by_topology(skerry: Skerry, file: Path, topology: Topology) -> Found:
    done = skerry("up", "--detach", "--topology", str(file))
    assert done.returncode == 0, done.stderr
    found = found_in(LaunchFolder.of_control(skerry.home), topology)
    urls = [each["url"] for each in skerry.status()["edges"]]
    for edge, url in zip(topology.edges, urls, strict=True):
        assert url == (edge.url or url)
    assert skerry("down", "--timeout", "30").returncode == 0
    return found


def by_control_plane(skerry: Skerry, file: Path, topology: Topology) -> Found:
    control = ControlPlane(skerry)
    try:
        done = skerry("apply", "-f", str(file))
        assert done.returncode == 0, done.stderr
        for edge in topology.edges:
            control.until_ready(f"edge_nodes/{edge.name}")
            if edge.tls is not None:
                answers_by_tls(control, edge.name)
        for pool in topology.pools:
            control.until_ready(f"pools/{pool.region}-{pool.name}")
        until(lambda: all(each["state"] == "ready" for each in control.nodes().values()))
        url = control.get(f"edge_nodes/{topology.edges[0].name}")["status"]["url"]
        with AI(base_url=url, account_id=control.account, api_token=control.token) as ai:
            assert ai.run(MODEL, {"prompt": "Moin!", "max_tokens": 2})["response"]
        return found_in(LaunchFolder.of_control(skerry.home), topology)
    finally:
        control.stop()


def answers_by_tls(control: ControlPlane, name: str) -> None:
    """The edge has the certificate that the file names, and is called what the file says."""
    assert control.get(f"edge_nodes/{name}")["status"]["url"] == "https://ai.test"
    record = json.loads((control.skerry.home / f"run/launched/{name}-0.json").read_text())
    context = ssl.create_default_context(cafile=str(TLS / "first.pem"))
    context.check_hostname = False
    url = f"https://{record['address'].removeprefix('tcp:')}/healthz"
    assert httpx.get(url, verify=context).status_code == 200


def same_of(skerry: Skerry, file: Path) -> Found:
    """Return what both have started: processes of the same kind, owner, region and options."""
    topology = load_topology(file)
    one, other = by_topology(skerry, file, topology), by_control_plane(skerry, file, topology)
    for found in (one, other):
        for words in found.get(SERVER, ()):
            del words[words.index("dns") + 1 :]  # the zone of the file, or of the control plane
    for key in one.keys() | other.keys():
        assert one.get(key) == other.get(key), key
    return other


def test_both_start_the_same(tmp_path: Path, default_model: ModelFiles) -> None:
    file = tmp_path / "platform.yaml"
    file.write_text(FILE)
    found = same_of(new_home(tmp_path, default_model), file)
    assert {key: len(lines) for key, lines in found.items()} == {
        ("node", "fra-prefill", "fra"): 1,
        ("node", "iad-decode", "iad"): 2,
        ("edge", "plain", "iad"): 1,
        ("edge", "secure", "fra"): 1,
        ("relays", "relays", ""): 1,
    }


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_both_start_the_same_for_an_example(
    example: Path, tmp_path: Path, default_model: ModelFiles, embedding_model: ModelFiles
) -> None:
    """At free ports: others may have those of the file."""
    skerry, file = new_home(tmp_path, default_model), tmp_path / "platform.yaml"
    embedder = embedding_model.directory
    (skerry.home / "models" / embedder.name).symlink_to(embedder)
    text = re.sub(r"port: \d+", "port: 0", example.read_text())
    file.write_text(text.replace("  zone: example.test", "  zone: example.test\n  port: 0"))
    found = same_of(skerry, file)
    topology = load_topology(file)
    beside = [topology.emulate, topology.dns]
    num_beside = sum(each is not None for each in beside)
    assert len(found) == len(topology.pools) + len(topology.edges) + num_beside
