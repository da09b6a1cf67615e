"""The console of a platform that runs: the address that is printed, and what is in the wheel."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.e2e.command import MODEL, ROOT, SECONDS, Skerry, new_home

from skerry_regions.models.model_files import ModelFiles

OWN = {"x-skerry-console": "1"}
ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/console/#login=(\S+)")


def logged_in(address: str) -> tuple[int, dict[str, object]]:
    """What the exchange of an address's code answers."""
    match = ADDRESS.search(address)
    assert match is not None, address
    assert httpx.get(f"{match[1]}/", headers=OWN).headers["location"] == "/console/"
    reply = httpx.post(f"{match[1]}/console/login", json={"code": match[2]}, headers=OWN)
    told: dict[str, object] = reply.json()
    return reply.status_code, told


@pytest.mark.model
def test_the_printed_address_logs_in_once(default_model: ModelFiles, tmp_path: Path) -> None:
    skerry = new_home(tmp_path, default_model)
    try:
        printed = skerry.up("--log", "text")
        status, told = logged_in(printed)
        assert (status, told["role"], told["edge"]) == (200, "operator", "edge-1")
        assert logged_in(printed)[0] == 401
        again = skerry("console")
        assert (again.returncode, logged_in(again.stdout)[0]) == (0, 200)
        assert skerry("console", "--edge", "edge-9").returncode == 1
        status, told = logged_in(skerry("console", "--control").stdout)
        assert (status, told["role"], told["site"]) == (200, "operator", "control")
        logs = [path.read_text() for path in (skerry.home / "logs").iterdir()]
        assert [each for each in logs if "#login=" in each] == []
    finally:
        skerry("down")
    ended = skerry("console")
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.model
def test_it_may_be_off(default_model: ModelFiles, tmp_path: Path) -> None:
    skerry = new_home(tmp_path, default_model)
    try:
        report = json.loads(skerry.up("--console", "off"))
        assert report["console"] is None
        assert httpx.get(f"{report['url']}/console/").status_code == 401
    finally:
        skerry("down")


@pytest.mark.slow
def test_the_wheel_has_the_consoles_files(tmp_path: Path) -> None:
    builders = pytest.importorskip("hatchling.builders.wheel")
    [wheel] = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    console = "skerry_edge/console/"
    folders = {"static": ROOT / "edge" / console / "static", "docs": ROOT / "docs"}
    with zipfile.ZipFile(wheel) as files:
        packed = {name: files.read(name) for name in files.namelist() if name.startswith(console)}
    assert f"{console}docs.html" in packed
    for name, folder in folders.items():
        prefix = f"{console}{name}/"
        here = [path for path in folder.rglob("*") if path.is_file()]
        assert len(here) > 20
        assert {path: held for path, held in packed.items() if path.startswith(prefix)} == {
            prefix + path.relative_to(folder).as_posix(): path.read_bytes() for path in here
        }


SPLIT = f"""\
regions:
  - {{name: fra, iata: FRA}}
pools:
  - {{name: pool, region: fra, role: hybrid, model: "{MODEL}", runner: toy, replicas: 2}}
edges:
  - {{name: edge, region: fra, port: 0}}
"""
ASKED = {
    "model": MODEL, "messages": [{"role": "user", "content": "The sea is " * 30}], "seed": 7,
    "temperature": 1.0, "max_tokens": 200, "stream": True,
}  # fmt: skip


class Browser:
    """A client that has opened the address of `skerry console`."""

    def __init__(self, skerry: Skerry) -> None:
        match = ADDRESS.search(skerry("console").stdout)
        assert match is not None
        self.client = httpx.Client(base_url=match[1], headers=OWN, timeout=SECONDS, trust_env=False)
        told = self.client.post("/console/login", json={"code": match[2]}).json()
        self.path = f"/console/api/client/v4/accounts/{told['account']}/ai/v1/chat/completions"

    def ask(self, after: int = 0, then: Callable[[], object] = lambda: None) -> str:
        """What a stream said; `then` is called when so many chunks with text have come."""
        said, seen = "", 0
        with self.client.stream("POST", self.path, json=ASKED) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    delta = json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                    said += delta
                    seen += bool(delta)
                    if seen == after:
                        seen += 1
                        then()
        return said

    def states(self) -> Iterator[dict[str, str]]:
        """States of all nodes, after each frame of the page of regions."""
        known: dict[str, str] = {}
        with self.client.stream("GET", "/console/live?view=regions") as reply:
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    for row in json.loads(line[6:]).get("nodes", ()):
                        known[row["id"]] = row["state"]
                    yield known


@pytest.mark.slow
@pytest.mark.model
def test_a_killed_node_is_shown_and_the_text_goes_on(
    default_model: ModelFiles, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    skerry = new_home(tmp_path, default_model)
    (tmp_path / "topology.yaml").write_text(SPLIT)
    try:
        done = skerry("up", "--detach", "--topology", str(tmp_path / "topology.yaml"))
        assert done.returncode == 0, done.stderr
        asking, looking = Browser(skerry), Browser(skerry)
        undisturbed = asking.ask()
        pids = {node["id"]: node["pid"] for node in skerry.status()["nodes"]}
        states = looking.states()
        assert set(next(states).values()) == {"ready"}
        killed: list[float] = []

        def kill() -> None:
            busy = [node for node in skerry.status()["nodes"] if node["streams"]]
            os.kill(pids[busy[0]["id"]], signal.SIGKILL)
            killed.append(time.monotonic())

        shown: list[float] = []

        def look() -> None:
            for known in states:
                if "down" in known.values():
                    shown.append(time.monotonic())
                    return

        watching = threading.Thread(target=look)
        watching.start()
        assert asking.ask(20, kill) == undisturbed
        watching.join(SECONDS)
        record_property("seconds until it was shown", round(shown[0] - killed[0], 3))
    finally:
        skerry("down")
