"""What pages follow: rows of requests, for their own account alone, in frames without a gap."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import ACCOUNT, Deployment, deployed, eventually
from tests.edge.telemetry.test_tracing import split_attempt

from skerry.errors import RateLimited
from skerry_edge.console.live import MAX_ROWS, MAX_STREAMS_OF_HOLDER, Live, RequestChannel
from skerry_edge.console.rows import row_of
from skerry_edge.limits import Limits
from skerry_edge.telemetry.trace_store import TraceStore
from skerry_edge.telemetry.tracing import Trace

OWN = {"x-skerry-console": "1"}
OTHER = "f" * 32  # an account
NUMBERS = itertools.count()  # of traces


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder: Path = tmp_path_factory.mktemp("live")
    with deployed(folder, Limits(), console="loopback") as edge:
        yield edge


@pytest.fixture(autouse=True)
def _quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry_edge.console.live.BEAT_SECONDS", 0.01)


@pytest.fixture
def at(shown: Deployment) -> Iterator[Deployment]:
    shown.region.script = lambda submit: answer("Hello")
    shown.region.attempts = []
    yield shown
    eventually(lambda: shown.edge.traces._watchers == [])  # nothing follows when nobody looks


def new_token(edge: Deployment, **more: Any) -> tuple[str, str]:
    made: dict[str, Any] = {"account_id": ACCOUNT, "role": "viewer", "now": 0} | more
    token, record = edge.edge.tokens.create(**made)
    return token, record.id


@contextmanager
def browser(edge: Deployment, token: str) -> Generator[httpx.Client]:
    """A client that is logged in."""
    base = f"http://127.0.0.1:{edge.port}"
    with httpx.Client(base_url=base, trust_env=False, headers=OWN, timeout=60.0) as client:
        assert client.post("/console/login", json={"token": token}).status_code == 200
        yield client


@contextmanager
def following(client: httpx.Client) -> Generator[Iterator[tuple[str, dict[str, Any]]]]:
    """The frames of a stream: what each is, and what it holds."""
    with client.stream("GET", "/console/live?view=requests") as reply:
        assert reply.status_code == 200, reply.read()
        assert reply.headers["content-type"].startswith("text/event-stream")
        yield frames(reply)


def frames(reply: httpx.Response) -> Iterator[tuple[str, dict[str, Any]]]:
    event = ""
    for line in reply.iter_lines():
        if line.startswith("event: "):
            event = line[7:]
        elif line.startswith("data: "):
            yield event, json.loads(line[6:])


def with_rows(stream: Iterator[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The rows of the next delta that has some."""
    return next(frame["requests"] for _, frame in stream if "requests" in frame)


# --- the stream ----------------------------------------------------------------------------------


def test_a_request_is_a_row_when_it_has_ended(at: Deployment) -> None:
    token, _ = new_token(at)
    with browser(at, token) as client, following(client) as stream:
        event, snapshot = next(stream)
        assert (event, snapshot["seq"]) == ("snapshot", 0)
        before = [each["id"] for each in snapshot["requests"]]
        reply = at.run(prompt="hi")
        [row] = with_rows(stream)
        assert row["id"] == reply.headers["x-request-id"]
        assert row["id"] not in before
        assert (row["model"], row["status"], row["outcome"]) == (MODEL, 200, "stop")
        assert row["tokens"] == reply.json()["result"]["usage"]["completion_tokens"]
        assert row["prompt_tokens"] == len(at.region.submits[-1].prompt_ids)
        assert "Hello" not in json.dumps(row)
    with browser(at, token) as client, following(client) as stream:
        assert next(stream)[1]["requests"][0]["id"] == row["id"]


def test_numbers_have_no_gap_and_silence_is_told(at: Deployment) -> None:
    token, _ = new_token(at)
    with browser(at, token) as client, following(client) as stream:
        told = [next(stream) for _ in range(3)]
        assert [(event, frame["seq"]) for event, frame in told] == [
            ("snapshot", 0), ("delta", 1), ("delta", 2),
        ]  # fmt: skip
        assert told[1][1]["at"] < told[2][1]["at"]


def test_nobody_sees_another_accounts_requests(at: Deployment) -> None:
    theirs, _ = new_token(at, account_id=OTHER, role="developer")
    own, _ = new_token(at, role="operator")
    path = f"/client/v4/accounts/{OTHER}/ai/run/{MODEL}"
    with browser(at, own) as client, following(client) as stream:
        next(stream)
        reply = at.client.post(
            path, json={"prompt": "hi"}, headers={"authorization": f"Bearer {theirs}"}
        )
        their_id = reply.headers["x-request-id"]
        assert reply.status_code == 200
        own_id = at.run(prompt="hi").headers["x-request-id"]
        assert [row["id"] for row in with_rows(stream)] == [own_id]
        kept = f"/console/api/client/v4/accounts/{ACCOUNT}/ai/traces"
        assert client.get(f"{kept}/{own_id}").status_code == 200
        assert client.get(f"{kept}/{their_id}").status_code == 404
    with browser(at, own) as client, following(client) as stream:
        assert their_id not in [row["id"] for row in next(stream)[1]["requests"]]


def test_a_stream_ends_with_its_session(at: Deployment) -> None:
    token, token_id = new_token(at)
    with browser(at, token) as client, following(client) as stream:
        next(stream)
        at.edge.tokens.revoke(token_id)
        assert [event for event, _ in stream][-1] == "end"


@pytest.mark.parametrize(
    ("role", "view", "status"),
    [(None, "requests", 403), ("viewer", "nothing", 400), ("viewer", "", 400)],
)
def test_who_gets_none(at: Deployment, role: str | None, view: str, status: int) -> None:
    token, _ = new_token(at, role=role)
    with browser(at, token) as client:
        assert client.get(f"/console/live?view={view}").status_code == status


def test_a_login_has_a_few_streams(at: Deployment) -> None:
    token, _ = new_token(at)
    with browser(at, token) as client:
        opened = [following(client) for _ in range(MAX_STREAMS_OF_HOLDER)]
        streams = [each.__enter__() for each in opened]  # one that is collected ends its response
        for stream in streams:
            next(stream)
        assert client.get("/console/live?view=requests").status_code == 429
        opened[0].__exit__(None, None, None)
        eventually(lambda: client_can_follow(client))
        for each in opened[1:]:
            each.__exit__(None, None, None)


def client_can_follow(client: httpx.Client) -> bool:
    with client.stream("GET", "/console/live?view=requests") as reply:
        return reply.status_code == 200


# --- rows and frames ------------------------------------------------------------------------------


def test_a_row_says_what_the_first_token_waited_for(at: Deployment) -> None:
    at.region.attempts = [split_attempt()]
    reply = at.run(prompt="hi")
    record = at.edge.traces.record(reply.headers["x-request-id"])
    assert record is not None
    row = row_of(record)
    spans = {each.name: each for each in record.spans}
    attempt = spans["attempt"]
    assert row.nodes == attempt.attributes["nodes"]
    assert row.attempts == 1
    first = attempt.attributes["first_token_seconds"]
    assert isinstance(first, float)
    assert row.first_token == pytest.approx(attempt.start + first, abs=1e-6)
    waits = [attempt.start, attempt.attributes["network_seconds"]]
    waits += [spans[name].seconds for name in ("queue", "prefill", "hand-over")]
    assert row.waits == pytest.approx(waits, abs=1e-6)


def ended(traces: TraceStore, tenant: str) -> str:
    trace = Trace(f"{tenant[:4]}-{next(NUMBERS)}")
    traces.begin(trace, tenant)
    traces.end(trace, 200, "/run")
    return trace.request_id


def test_a_frame_is_bounded_and_says_how_much_more_there_was() -> None:
    traces = TraceStore("edge-1")
    channel = RequestChannel(traces, ACCOUNT)
    assert channel.news() == {}
    ids = [ended(traces, ACCOUNT) for _ in range(MAX_ROWS + 3)]
    ended(traces, OTHER)
    news: Any = channel.news()
    assert [row.id for row in news["requests"]] == ids[:MAX_ROWS][::-1]
    assert news["more"] == 3
    assert channel.news() == {}
    snapshot: Any = channel.snapshot()
    assert [row.id for row in snapshot["requests"]] == ids[::-1][:MAX_ROWS]
    channel.close()
    ended(traces, ACCOUNT)
    assert channel.news() == {}


@pytest.mark.anyio
async def test_all_viewers_get_one_frame_and_a_slow_one_a_snapshot() -> None:
    traces = TraceStore("edge-1")
    live = Live(traces, lambda: 0.0)
    quick, other, slow = (live.requests(ACCOUNT, name, lambda: True) for name in ("a", "b", "c"))
    for stream in (quick, other, slow):
        assert (await anext(stream)).startswith(b"event: snapshot\n")
    ended(traces, ACCOUNT)
    first = await anext(quick)
    assert await anext(other) is first  # one object, encoded once
    for _ in range(3):
        ended(traces, ACCOUNT)
        assert (await anext(quick)).startswith(b"event: delta\n")
    late = await anext(slow)
    assert late.startswith(b"event: snapshot\n")
    assert json.loads(late.split(b"data: ")[1])["seq"] >= 4
    for stream in (quick, other, slow):
        await stream.aclose()
    assert live._streams.total() == 0
    await asyncio.sleep(0.05)
    assert not [each for each in asyncio.all_tasks() if each.get_name() == "console"]


@pytest.mark.anyio
async def test_streams_end_where_the_edge_does() -> None:
    ending: list[bool] = []
    live = Live(TraceStore(), lambda: 0.0, lambda: bool(ending))
    stream = live.requests(ACCOUNT, "a", lambda: True)
    await anext(stream)
    ending.append(True)
    assert [each async for each in stream][-1] == b"event: end\ndata: {}\n\n"


@pytest.mark.anyio
async def test_an_edge_has_a_bound_of_its_own() -> None:
    live = Live(TraceStore(), lambda: 0.0)
    streams = []
    for number in range(64):
        streams.append(live.requests(ACCOUNT, str(number), lambda: True))
        await anext(streams[-1])
    with pytest.raises(RateLimited):
        live.requests(ACCOUNT, "another", lambda: True)
    for stream in streams:
        await stream.aclose()
