"""`skerry control`: what is written down over HTTP becomes processes, and stays so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, is_alive, new_home

from skerry import AI
from skerry_regions.control.socket_paths import SocketPaths
from skerry_regions.model_files import ModelFiles

pytestmark = pytest.mark.model

POOL = {"region": "fra", "model": MODEL, "runner": "toy", "threads": 1, "file_tier": "none"}
ASKED = {"prompt": "The sea is " * 30, "raw": True, "seed": 7, "max_tokens": 200}


class ControlPlane:
    """A `skerry control` process, and a client of its API."""

    def __init__(self, skerry: Skerry) -> None:
        self.skerry = skerry
        self.start()

    def start(self) -> None:
        log = self.skerry.home / "control.log"
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "skerry", "control", "--port", "0", "--own"],
                env=self.skerry.environ, stdin=subprocess.DEVNULL, stderr=stderr,
            )  # fmt: skip
        until(lambda: "is ready at" in log.read_text() or self.process.poll())
        config = json.loads((self.skerry.home / "config.json").read_text())
        self.token, self.account = config["api_token"], config["account_id"]
        self.http = httpx.Client(
            base_url=f"{config['control_url']}/control/v1",
            headers={"authorization": f"Bearer {self.token}"},
            timeout=30,
        )

    def kill(self) -> None:
        self.process.kill()
        self._reap()

    def stop(self) -> None:
        self.process.terminate()
        self._reap()
        assert self.process.returncode == 0

    def _reap(self) -> None:
        self.process.wait(SECONDS)
        self.http.close()

    def make(self, collection: str, **values: Any) -> None:
        answer = self.http.post(f"/{collection}", json=values)
        assert answer.status_code == 201, answer.text

    def patch(self, path: str, **values: Any) -> None:
        answer = self.http.patch(f"/{path}", json=values)
        assert answer.status_code == 200, answer.text

    def get(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get(f"/{path}").json()
        return found

    def until_ready(self, path: str) -> dict[str, Any]:
        def ready() -> Any:
            found = self.get(path)
            return found if found["status"]["phase"] == "ready" else None

        found: dict[str, Any] = until(ready)
        return found

    def nodes(self) -> dict[str, dict[str, Any]]:
        return {node["id"]: node for node in self.get("nodes")["items"]}

    def ai(self) -> AI:
        url = self.get("edge_nodes/edge")["status"]["url"]
        return AI(base_url=url, account_id=self.account, api_token=self.token)


def until(condition: Callable[[], Any]) -> Any:
    """The first truthy value of `condition`."""
    deadline = time.monotonic() + 90
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
    return value


@pytest.fixture(scope="module")
def control(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[ControlPlane]:
    control = ControlPlane(new_home(tmp_path_factory.mktemp("control"), default_model))
    try:
        prepare(control)
        yield control
    finally:
        control.stop()


def prepare(control: ControlPlane) -> None:
    control.make("regions", name="fra", iata="FRA")
    control.make("pools", name="prefill", role="prefill", **POOL)
    control.make("pools", name="decode", role="decode", replicas=2, **POOL)
    control.make("edge_nodes", name="edge", region="fra")
    control.until_ready("regions/fra")


def test_an_edge_answers_from_the_pools(control: ControlPlane) -> None:
    with control.ai() as ai:
        answer = ai.run(MODEL, {"prompt": "The sea is", "max_tokens": 4})
    assert answer["usage"]["completion_tokens"] == 4


def test_a_killed_node_is_repaired(control: ControlPlane) -> None:
    before = control.nodes()["fra-decode-0"]
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: control.nodes().get("fra-decode-0", before)["pid"] != before["pid"])
    control.until_ready("pools/fra-decode")
    events = control.get("events?kind=pool&id=fra-decode&limit=500")["items"]
    assert [event["type"] for event in events if event["reason"] == "Ended"] == ["warning"]


def test_a_killed_control_plane_adopts_what_runs(control: ControlPlane) -> None:
    before = {id: node["pid"] for id, node in control.nodes().items()}
    control.kill()
    with AI(base_url=edge_url(control.skerry), account_id=control.account,
            api_token=control.token) as ai:  # fmt: skip
        assert ai.run(MODEL, {"prompt": "The sea is", "max_tokens": 2})
    control.start()
    control.until_ready("regions/fra")
    assert {id: node["pid"] for id, node in control.nodes().items()} == before


def edge_url(skerry: Skerry) -> str:
    """As the edge's launch record has it: the control plane is not there to ask."""
    record = json.loads((skerry.home / "run" / "launched" / "edge-0.json").read_text())
    return "http://" + str(record["address"]).removeprefix("tcp:")


def test_a_second_control_plane_is_refused(control: ControlPlane) -> None:
    done = control.skerry("control", "--port", "0")
    assert (done.returncode, "runs already" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("change", [{"replicas": 1}, {"replicas": 2, "kv_blocks": 128}])
def test_no_stream_is_cut_by_a_change(control: ControlPlane, change: dict[str, Any]) -> None:
    with control.ai() as ai:
        undisturbed = ai.run(MODEL, ASKED)["response"]
        answers: list[str] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                answers.append(ai.run(MODEL, ASKED)["response"])

        asking = [threading.Thread(target=ask) for _ in range(3)]
        for thread in asking:
            thread.start()
        control.patch("pools/fra-decode", **change)
        control.until_ready("pools/fra-decode")
        stop.set()
        for thread in asking:
            thread.join()
    assert set(answers) == {undisturbed}


def test_a_token_works_until_it_is_deleted(control: ControlPlane) -> None:
    made = control.http.post("/api_tokens", json={"name": "ci", "scopes": ["read"]}).json()
    verify = edge_url(control.skerry) + "/client/v4/user/tokens/verify"
    headers = {"authorization": f"Bearer {made['secret']}"}
    assert httpx.get(verify, headers=headers).status_code == 200
    assert control.http.get("/regions", headers=headers).status_code == 403
    assert control.http.delete(f"/api_tokens/{made['id']}").status_code == 204
    assert httpx.get(verify, headers=headers).status_code == 401


def test_a_copy_of_the_database_while_it_runs(control: ControlPlane, tmp_path: Path) -> None:
    assert control.skerry("control", "backup", str(tmp_path / "copy.db")).returncode == 0
    refused = control.skerry("control", "restore", str(tmp_path / "copy.db"))
    assert (refused.returncode, "runs already" in refused.stderr) == (1, True)


def test_what_is_removed_drains_and_nothing_is_left(control: ControlPlane) -> None:
    pids = [node["pid"] for node in control.nodes().values()]
    for path in ("edge_nodes/edge", "pools/fra-decode", "pools/fra-prefill", "regions/fra"):
        assert control.http.delete(f"/{path}").status_code == 202
    until(lambda: control.http.get("/regions/fra").status_code == 404)
    assert not any(map(is_alive, pids))
    home = control.skerry.home
    assert not [*(home / "run" / "launched").iterdir(), *SocketPaths.of(home).root.iterdir()]
