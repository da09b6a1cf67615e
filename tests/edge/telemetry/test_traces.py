"""A request's trace from outside: what is told, to whom, and that it holds no words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.edge.scripted_region import MODEL, Hold, answer
from tests.edge.support import ACCOUNT, Deployment, deployed, eventually
from tests.edge.telemetry.test_tracing import split_attempt

from skerry.errors import Overloaded
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits
from skerry_edge.telemetry.tracing import Span, TraceRecord

SECRET = "zanzibar-nobody-may-read-this"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def path_of(request_id: str, account: str = ACCOUNT) -> str:
    return f"/client/v4/accounts/{account}/ai/traces/{request_id}"


def trace_of(edge: Deployment, reply: httpx.Response) -> TraceRecord:
    told = edge.client.get(path_of(reply.headers["x-request-id"]))
    assert told.status_code == 200, told.text
    return msgspec.convert(told.json()["result"], TraceRecord)


def only(record: TraceRecord, name: str) -> Span:
    [span] = [span for span in record.spans if span.name == name]
    return span


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["run_path", "chat_path"])
def test_a_request_is_told_from_header_to_last_byte(
    edge: Deployment, path: str, stream: bool
) -> None:
    edge.region.script = lambda submit: answer(SECRET)
    messages = [{"role": "user", "content": SECRET}]
    body = {"model": MODEL, "messages": messages, "stream": stream}
    reply = edge.client.post(getattr(edge, path), json=body)
    record = trace_of(edge, reply)
    assert [span.name for span in record.spans] == [
        "request",
        "receive",
        "tokenise",
        "admission",
        "generate",
    ]
    assert (record.status, record.tenant) == (200, ACCOUNT)
    root = record.spans[0]
    assert all(span.parent == root.id for span in record.spans[1:])
    assert record.seconds is not None
    for span in record.spans:
        assert span.seconds is not None
        assert 0 <= span.start <= span.start + span.seconds <= record.seconds + 1e-6
    generate = only(record, "generate").attributes
    assert (generate["model"], generate["outcome"]) == (MODEL, "stop")
    assert generate["tokens"] == len(SECRET) + 1
    prompt_tokens = len(edge.region.submits[0].prompt_ids)
    assert only(record, "tokenise").attributes["tokens"] == prompt_tokens
    assert SECRET.encode() not in msgspec.json.encode(record)


def test_the_callers_trace_goes_on_to_the_node(edge: Deployment) -> None:
    headers = {"traceparent": PARENT, "tracestate": "vendor=x"}
    reply = edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=headers)
    record = trace_of(edge, reply)
    assert (record.trace_id, record.parent) == (PARENT[3:35], PARENT[36:52])
    context = edge.region.submits[0].trace
    assert context is not None
    assert (context.trace_id, context.state) == (PARENT[3:35], "vendor=x")
    assert context.span_id == only(record, "generate").id
    assert reply.headers["traceresponse"] == f"00-{record.trace_id}-{record.spans[0].id}-01"


@pytest.mark.parametrize("header", [None, "00-xyz", PARENT.replace("00-4", "ff-4", 1)])
def test_without_a_valid_parent_a_trace_begins(edge: Deployment, header: str | None) -> None:
    headers = {} if header is None else {"traceparent": header}
    reply = edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=headers)
    record = trace_of(edge, reply)
    assert record.parent == ""
    assert record.trace_id != PARENT[3:35]
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", reply.headers["traceresponse"])


def test_where_it_ran_is_part_of_it(edge: Deployment) -> None:
    edge.region.attempts = [split_attempt()]
    record = trace_of(edge, edge.run(prompt="hi"))
    names = {span.name for span in record.spans}
    assert names >= {"route", "attempt", "queue", "prefill", "hand-over", "await KV", "decode"}
    assert only(record, "attempt").parent == only(record, "generate").id
    text = edge.edge.metrics.render().decode()
    assert f'skerry_attempts_total{{model_name="{MODEL}",outcome="stop"}} 1\n' in text
    assert f'skerry_handover_seconds_count{{model_name="{MODEL}"}} 1\n' in text
    assert f'vllm:request_prefill_time_seconds_sum{{model_name="{MODEL}"}} 0.25\n' in text


def test_every_choice_has_its_own_span(edge: Deployment) -> None:
    reply = edge.chat(n=3)
    spans = [span for span in trace_of(edge, reply).spans if span.name == "generate"]
    assert sorted(span.attributes["choice"] for span in spans) == [0, 1, 2]
    assert len({submit.trace.span_id for submit in edge.region.submits if submit.trace}) == 3


def test_failures_are_told_by_their_code(edge: Deployment) -> None:
    def refuse(submit: object) -> Any:
        raise Overloaded("no room", retry_after=1.0)

    edge.region.script = refuse
    reply = edge.run(prompt="hi")
    record = trace_of(edge, reply)
    assert (reply.status_code, record.status) == (429, 429)
    assert only(record, "generate").attributes["outcome"] == "overloaded"


def test_a_request_can_be_looked_at_while_it_runs(edge: Deployment) -> None:
    edge.region.script = lambda submit: [*answer("Hel")[:3], Hold()]
    body = {"prompt": "x", "stream": True}
    with edge.client.stream("POST", edge.run_path, json=body) as reply:
        lines = reply.iter_lines()  # to be kept: its end would close the connection
        next(lines)
        with httpx.Client(base_url=edge.client.base_url, headers=edge.client.headers) as other:
            told = other.get(path_of(reply.headers["x-request-id"])).json()["result"]
    assert (told["seconds"], told["status"]) == (None, None)
    assert [span["name"] for span in told["spans"]] == [
        "request",
        "receive",
        "tokenise",
        "admission",
    ]


def test_a_client_that_leaves_ends_its_trace(edge: Deployment) -> None:
    edge.region.script = lambda submit: [*answer("Hel")[:3], Hold()]
    with edge.client.stream("POST", edge.run_path, json={"prompt": "x", "stream": True}) as reply:
        next(reply.iter_lines())
    assert edge.region.streams[0].aborted.wait(60)
    eventually(lambda: trace_of(edge, reply).seconds is not None)
    record = trace_of(edge, reply)
    assert only(record, "generate").attributes["outcome"] == "abort"


def test_only_a_role_in_the_account_is_told(edge: Deployment) -> None:
    request_id = edge.run(prompt="hi").headers["x-request-id"]
    tokens = edge.edge.tokens
    reader, _ = tokens.create(account_id=ACCOUNT, scopes=("run", "read"), now=0)
    stranger, _ = tokens.create(account_id="f" * 32, role="viewer", now=0)

    def status(account: str, token: str) -> int:
        headers = {"authorization": f"Bearer {token}"}
        return edge.client.get(path_of(request_id, account), headers=headers).status_code

    assert status(ACCOUNT, edge.token) == 200
    assert status(ACCOUNT, reader) == 403
    assert status("f" * 32, stranger) == 404
    assert status(ACCOUNT, stranger) == 404
    assert edge.client.get(path_of("unknown")).status_code == 404


def test_what_is_not_a_request_for_a_model_is_not_kept(edge: Deployment) -> None:
    reply = edge.client.get(f"/client/v4/accounts/{ACCOUNT}/ai/v1/models")
    assert edge.client.get(path_of(reply.headers["x-request-id"])).status_code == 404


def test_an_answer_out_of_the_cache_says_so(tmp_path: Path) -> None:
    stores = Stores.in_folder(tmp_path / "stores", edge="edge-1")
    headers = {"cf-aig-cache-ttl": "600"}
    body = {"prompt": "hi", "temperature": 0}
    with deployed(tmp_path, Limits(drain_seconds=1), stores=stores) as edge:
        first = edge.client.post(edge.run_path, json=body, headers=headers)
        computed = only(trace_of(edge, first), "generate").attributes
        again = edge.client.post(edge.run_path, json=body, headers=headers)
        assert again.headers["cf-aig-cache-status"] == "HIT"
        replayed = only(trace_of(edge, again), "generate").attributes
    assert "replayed" not in computed
    assert replayed["replayed"] is True
    assert replayed["outcome"] == "stop"
