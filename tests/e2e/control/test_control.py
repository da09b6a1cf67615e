"""`skerry control`: what is written down over HTTP becomes processes, and stays so."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, SECONDS, is_alive, new_home, until
from tests.e2e.control.control_client import ControlClient, ControlPlane
from tests.e2e.control.control_platform import (
    ASKED,
    ISSUERS,
    OWN,
    POOL,
    answers,
    ask_without_control_plane,
    edge_url,
    is_edge,
    is_made,
    is_unknown,
    names,
    prepare,
    remove_all,
)
from tests.edge.gate.issuer import provider

from skerry import AI
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.process.socket_paths import SocketPaths

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def control(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[ControlPlane]:
    skerry = new_home(tmp_path_factory.mktemp("control"), default_model)
    assert skerry("models", "add", str(default_model.weights), "--as", OWN).returncode == 0
    control = ControlPlane(skerry)
    try:
        prepare(control)
        yield control
    finally:
        control.stop()


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


def test_callers_wait_for_an_edge_that_was_killed(control: ControlPlane) -> None:
    """Whoever connects in between is answered by the next one, at the same port."""
    control.until_ready("edge_nodes/edge")
    [before] = filter(is_edge, control.nodes().values())
    os.kill(before["pid"], signal.SIGKILL)
    until(lambda: not is_alive(before["pid"]))
    answer = httpx.get(f"{before['address']}/healthz", timeout=SECONDS)
    assert answer.status_code == 200
    control.until_ready("edge_nodes/edge")
    [after] = filter(is_edge, control.nodes().values())
    assert (after["address"], after["pid"] != before["pid"]) == (before["address"], True)


def test_a_killed_control_plane_adopts_what_runs(control: ControlPlane) -> None:
    before = {id: node["pid"] for id, node in control.nodes().items()}
    control.kill()
    with AI(base_url=edge_url(control.skerry), account_id=control.account,
            api_token=control.token) as ai:  # fmt: skip
        assert ai.run(MODEL, {"prompt": "The sea is", "max_tokens": 2})
    control.start()
    control.until_ready("regions/fra")
    assert {id: node["pid"] for id, node in control.nodes().items()} == before


def test_a_second_control_plane_is_refused(control: ControlPlane) -> None:
    done = control.skerry("control", "--port", "0")
    assert (done.returncode, "runs already" in done.stderr) == (1, True), done.stderr


def test_up_leaves_a_control_plane_alone(control: ControlPlane, tmp_path: Path) -> None:
    """Its address in the home stays, and what to do instead is said."""
    before = (control.skerry.home / "config.json").read_bytes()
    file = tmp_path / "topology.yaml"
    for options, told in (([], "SKERRY_HOME"), (["--topology", str(file)], "skerry apply -f")):
        done = control.skerry("up", *options)
        assert (done.returncode, told in done.stderr) == (1, True), done.stderr
    assert (control.skerry.home / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [pytest.param({"replicas": 1}, marks=pytest.mark.slow), {"replicas": 2, "kv_blocks": 128}],
)
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
    account = control.get("status")["account_id"]
    caps = edge_url(control.skerry) + f"/client/v4/accounts/{account}/ai/caps"
    assert httpx.get(caps, headers=headers).json()["result"] == []
    control.patch(f"api_tokens/{made['id']}", per_month=2.5)
    [cap] = httpx.get(caps, headers=headers).json()["result"]
    assert (cap["id"], cap["period"], cap["cap"]) == (made["id"], "month", 2.5)
    assert control.http.delete(f"/api_tokens/{made['id']}").status_code == 204
    assert httpx.get(verify, headers=headers).status_code == 401


def test_children_of_a_token_end_with_it(control: ControlPlane) -> None:
    url = f"{control.http.base_url}api_tokens"
    verify = edge_url(control.skerry) + "/client/v4/user/tokens/verify"
    made = control.http.post("/api_tokens", json={"name": "ci", "role": "developer"}).json()
    line = [made]
    for name in ("child", "grandchild"):
        headers = {"authorization": f"Bearer {line[-1]['secret']}"}
        asked = {"name": name, "role": "developer"}
        line.append(httpx.post(url, json=asked, headers=headers).json())
    assert [each["parent"] for each in line[1:]] == [each["id"] for each in line[:-1]]

    def statuses() -> list[tuple[int, int]]:
        bearers = [{"authorization": f"Bearer {each['secret']}"} for each in line]
        return [
            (httpx.get(verify, headers=each).status_code, httpx.get(url, headers=each).status_code)
            for each in bearers
        ]

    assert statuses() == [(200, 200)] * 3
    assert control.http.delete(f"/api_tokens/{made['id']}").status_code == 204
    assert statuses() == [(401, 401)] * 3
    until(lambda: not {"ci", "child", "grandchild"} & names(control))


def test_who_logs_in_elsewhere_is_known_here(control: ControlPlane) -> None:
    """An issuer that is written down is followed by the control plane and by its edges."""
    edge = edge_url(control.skerry) + "/client/v4/user/tokens/verify"
    with provider() as known:
        (control.skerry.home / "issuers.yaml").write_text(ISSUERS.replace("URL", known.url))
        login = {"authorization": f"Bearer {known.token(groups=['developers'])}"}
        made = until(lambda: is_made(control, login)).json()
        operator = {"authorization": f"Bearer {known.token(sub='olga', groups=['operators'])}"}
        assert control.http.get("/regions", headers=operator).status_code == 200
        assert control.http.post("/regions", json={}, headers=login).status_code == 403
        until(lambda: httpx.get(edge, headers=login).status_code == 200)
        token = {"authorization": f"Bearer {made['secret']}"}
        assert httpx.get(edge, headers=token).status_code == 200
        audit = control.get("audit?limit=500")["items"]
        alices = [each for each in audit if each["actor"] == "acme:alice"]
        assert [each["outcome"] for each in alices] == ["granted", "denied"]
        assert control.skerry("tokens", "revoke", made["parent"]).returncode == 0
        assert httpx.get(edge, headers=token).status_code == 401
        shown = json.loads(control.skerry("audit", "--json", "--limit", "500").stdout)
        assert [each["action"] for each in shown if each["actor"] == "acme:alice"] == [
            "create", "post",
        ]  # fmt: skip
        revoked = [each for each in shown if each["id"] == made["parent"]]
        assert [(each["actor"][:5], each["action"]) for each in revoked] == [("user:", "delete")]
        assert [each["at"] for each in shown] == sorted(each["at"] for each in shown)
        (control.skerry.home / "issuers.yaml").unlink()
        until(lambda: control.http.get("/regions", headers=operator).status_code == 401)
        until(lambda: httpx.get(edge, headers=login).status_code == 401)


def test_a_copy_of_the_database_while_it_runs(control: ControlPlane, tmp_path: Path) -> None:
    assert control.skerry("control", "backup", str(tmp_path / "copy.db")).returncode == 0
    refused = control.skerry("control", "restore", str(tmp_path / "copy.db"))
    assert (refused.returncode, "runs already" in refused.stderr) == (1, True)


def test_a_pool_of_none_wakes_for_a_request_and_sleeps_again(control: ControlPlane) -> None:
    control.make("regions", name="iad", iata="IAD")
    nap = POOL | {"region": "iad", "model": OWN}
    control.make("pools", name="nap", role="hybrid", max_replicas=1, idle_seconds=1, **nap)
    control.until_ready("regions/iad")
    assert not [node for node in control.nodes().values() if node["owner"] == "iad-nap"]

    until(lambda: [node["updated"] for node in control.nodes().values() if is_edge(node)] == [True])
    with control.ai() as ai:
        assert ai.run(OWN, ASKED)["usage"]["completion_tokens"] > 0
    until(lambda: control.get("pools/iad-nap")["status"]["desired_replicas"] == 0)
    until(lambda: not [node for node in control.nodes().values() if node["owner"] == "iad-nap"])
    events = control.get("events?kind=pool&id=iad-nap&limit=500")["items"]
    scaled = [event["message"] for event in events if event["reason"] == "Scaled"]
    assert scaled == ["from 0 to 1: 1 requests wait for a first node", "from 1 to 0: nothing to do"]
    refused = ask_without_control_plane(control)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5"), refused.text
    assert f"no node of {OWN} is being started" in refused.text
    for path in ("pools/iad-nap", "regions/iad"):
        assert control.http.delete(f"/{path}").status_code == 202
    unknown = until(lambda: is_unknown(control))
    assert unknown.json()["error"]["code"] == "model_not_found"
    with control.ai() as ai:
        assert ai.run(MODEL, {"prompt": "The sea is", "max_tokens": 2})


def test_a_region_in_use_cannot_be_removed(control: ControlPlane) -> None:
    refused = control.http.delete("/regions/fra")
    assert refused.status_code == 409
    assert "is still used by edge_node 'edge', pool 'fra-decode'" in refused.text


def test_what_is_removed_drains_and_nothing_is_left(control: ControlPlane) -> None:
    pids = [node["pid"] for node in control.nodes().values()]
    asked: dict[str, Any] = ASKED | {"max_tokens": 1000, "ignore_eos": True}
    with control.ai() as ai:
        undisturbed = "".join(each["response"] for each in ai.run(MODEL, asked, stream=True))
        text = ""
        for number, chunk in enumerate(ai.run(MODEL, asked, stream=True)):
            text += chunk["response"]
            if number == 10:
                remove_all(control)
        assert text == undisturbed
    until(lambda: control.http.get("/regions/fra").status_code == 404)
    assert not any(map(is_alive, pids))
    home = control.skerry.home
    assert not [*(home / "run" / "launched").iterdir(), *SocketPaths.of(home).root.iterdir()]


def test_up_brings_a_control_plane_and_down_ends_all(
    tmp_path: Path, default_model: ModelFiles
) -> None:
    skerry = new_home(tmp_path, default_model)
    skerry.up()
    client = ControlClient(skerry)
    client.make("regions", name="iad", iata="IAD")
    client.make("pools", name="all", role="hybrid", **(POOL | {"region": "iad"}))
    client.until_ready("pools/iad-all")
    [node] = client.nodes().values()
    platform = skerry.status()["edges"][0]["pid"]
    children = Path(f"/proc/{platform}/task/{platform}/children").read_text().split()
    assert len(children) == 1, "the control plane"
    os.kill(int(children[0]), signal.SIGKILL)
    until(lambda: answers(client))
    again = client.until_ready("pools/iad-all")
    assert again["status"]["ready_replicas"] == 1
    assert [each["pid"] for each in client.nodes().values()] == [node["pid"]]

    assert skerry("down", "--timeout", "60").returncode == 0
    until(lambda: not is_alive(node["pid"]))
    left = {path.name for path in (skerry.home / "run").iterdir()}
    assert left == {"skerry.lock", "state.lock"}
    client.http.close()
