"""Clients that go away, deadlines, silence, overload, shutdown: nothing keeps computing."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests import cycles
from tests.edge.scripted_region import Hold, ScriptedStream, answer
from tests.edge.support import MODEL, PATIENCE, Deployment, asking, deployed, events, eventually

from skerry_edge.limits import Limits


def the_stream(edge: Deployment) -> ScriptedStream:
    eventually(lambda: edge.region.streams)
    return edge.region.streams[0]


def idle(edge: Deployment) -> None:
    eventually(lambda: edge.edge.metrics.running.value == 0)


@pytest.fixture
def silent(edge: Deployment) -> Deployment:
    """Says "Hel", then nothing."""
    edge.region.script = lambda submit: [*answer("Hel")[:3], Hold()]
    return edge


@pytest.mark.parametrize("path", ["run_path", "chat_path"])
def test_a_client_that_leaves_a_stream_aborts_it(silent: Deployment, path: str) -> None:
    body = {"model": "@cf/test/bytes", "messages": [{"role": "user", "content": "x"}]}
    with silent.client.stream(
        "POST", getattr(silent, path), json={**body, "stream": True}
    ) as reply:
        for line in reply.iter_lines():
            if '"l"' in line:
                break
    assert the_stream(silent).aborted.wait(PATIENCE)
    idle(silent)


def test_a_client_that_leaves_a_plain_request_aborts_it(silent: Deployment) -> None:
    with asking(silent.client, silent.run_path, {"prompt": "x"}):
        stream = the_stream(silent)
    assert stream.aborted.wait(PATIENCE)
    idle(silent)


def test_a_client_that_leaves_aborts_every_choice(silent: Deployment) -> None:
    body = {"model": "@cf/test/bytes", "messages": [{"role": "user", "content": "x"}], "n": 3}
    with silent.client.stream("POST", silent.chat_path, json={**body, "stream": True}) as reply:
        next(reply.iter_lines())
    assert all(stream.aborted.wait(PATIENCE) for stream in silent.region.streams)
    idle(silent)


def test_a_client_that_leaves_in_mid_body_costs_nothing(edge: Deployment) -> None:
    head = f"POST {edge.run_path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n"
    before = edge.edge.metrics.http_requests.value(
        "/client/v4/accounts/{account_id}/ai/run/{model:path}", "POST", "499"
    )
    with socket.create_connection(("127.0.0.1", edge.port)) as connection:
        connection.sendall(f"{head}Authorization: Bearer {edge.token}\r\n\r\n{{".encode())
    eventually(
        lambda: (
            edge.edge.metrics.http_requests.value(
                "/client/v4/accounts/{account_id}/ai/run/{model:path}", "POST", "499"
            )
            == before + 1
        )
    )
    assert edge.region.streams == []


def test_silence_is_filled_with_comments(silent: Deployment) -> None:
    with silent.client.stream(
        "POST", silent.run_path, json={"prompt": "x", "stream": True}
    ) as reply:
        comments = 0
        for line in reply.iter_lines():
            comments += line == ": keep-alive"
            if comments == 3:
                break
    assert the_stream(silent).aborted.wait(PATIENCE)


def test_the_headers_come_before_the_first_token(edge: Deployment) -> None:
    edge.region.script = lambda submit: [Hold()]
    with edge.client.stream("POST", edge.run_path, json={"prompt": "x", "stream": True}) as reply:
        assert reply.status_code == 200


def test_too_many_requests_are_told_to_come_back(silent: Deployment) -> None:
    body = {"prompt": "x", "stream": True}
    with ExitStack() as streams:
        for _ in range(silent.edge.limits.max_requests):
            streams.enter_context(silent.client.stream("POST", silent.run_path, json=body))
        reply = silent.run(prompt="x")
        assert reply.status_code == 429
        assert reply.json()["errors"][0]["code"] == 3040
        assert 1 <= int(reply.headers["retry-after"]) <= 60
    idle(silent)
    silent.region.script = lambda submit: answer("Hello")
    assert silent.run(prompt="x").status_code == 200


def test_the_deadline_ends_requests(tmp_path: Path) -> None:
    with deployed(tmp_path, Limits(request_seconds=0.3, drain_seconds=1)) as edge:
        edge.region.script = lambda submit: [*answer("Hel")[:3], Hold()]
        plain = edge.run(prompt="x")
        assert (plain.status_code, plain.json()["errors"][0]["code"]) == (408, 3046)
        streamed = events(edge.run(prompt="x", stream=True).text)
        assert streamed[-1]["errors"][0]["code"] == 3046
        assert all(stream.aborted.is_set() for stream in edge.region.streams)
        idle(edge)


@pytest.mark.parametrize("stream", [True, False])
def test_draining_ends_what_does_not_end_and_says_why(tmp_path: Path, stream: bool) -> None:
    replies: list[httpx.Response] = []

    def ask(edge: Deployment) -> None:
        url = f"http://127.0.0.1:{edge.port}{edge.run_path}"
        headers = {"authorization": f"Bearer {edge.token}"}
        body = {"prompt": "x", "stream": stream}
        replies.append(httpx.post(url, headers=headers, json=body, timeout=PATIENCE))

    with deployed(tmp_path, Limits(drain_seconds=1)) as edge:
        edge.region.script = lambda submit: [*answer("Hel")[:3], Hold()]
        asker = threading.Thread(target=ask, args=(edge,))
        asker.start()
        held = the_stream(edge)
    asker.join()
    assert held.aborted.is_set()
    if stream:
        *chunks, error = events(replies[0].text)
        assert "".join(chunk["response"] for chunk in chunks) == "Hel"
    else:
        error = replies[0].json()
        assert replies[0].status_code == 503
    assert error["errors"][0]["code"] == 7009


def test_what_was_measured(edge: Deployment) -> None:
    edge.run(prompt="x")
    text = edge.edge.metrics.render().decode()
    assert "# TYPE vllm:time_to_first_token_seconds histogram" in text
    assert 'vllm:generation_tokens_total{model_name="@cf/test/bytes"}' in text
    assert "\nskerry_requests_in_progress 0\n" in text


def test_connections_and_what_they_brought_leave_no_cycle(edge: Deployment) -> None:
    """Of whole answers, streams, refusals and clients that are gone."""

    def call() -> None:
        with httpx.Client(base_url=edge.client.base_url, headers=edge.client.headers) as client:
            for body in (
                {"model": MODEL, "prompt": "x"},
                {"model": MODEL, "prompt": "x", "stream": True},
                {"model": MODEL, "prompt": 1},
            ):
                client.post(edge.complete_path, json=body)
            with asking(client, edge.run_path, {"prompt": "x"}):
                pass
        edge.settle()

    call()
    with cycles.counted() as found:
        for _ in range(3):
            call()
        time.sleep(0.2)  # until their connections are closed here, too
    assert found == {}
