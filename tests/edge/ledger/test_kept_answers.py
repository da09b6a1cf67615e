"""Answers given again over HTTP: the response cache, idempotency keys, and what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.clock import Clock
from tests.edge.support import (
    ACCOUNT,
    CHAT,
    MODEL,
    Deployment,
    Hold,
    answer,
    deployed,
    done,
    events,
)

from skerry.errors import Overloaded, QuotaExceeded, Unavailable
from skerry_edge.api.documents import usage_routes
from skerry_edge.ledger import usage_report
from skerry_edge.ledger.idempotency import IdempotencyKeys
from skerry_edge.ledger.stores import Stores
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.ledger.usage_report import Totals, journals, totals
from skerry_edge.limits import Limits

CACHED = {"cf-aig-cache-ttl": "600"}
USAGE = f"/client/v4/accounts/{ACCOUNT}/ai/usage"
GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Deployment]:
    """An edge that remembers, whose engine says something else each time."""
    stores = Stores.in_folder(tmp_path / "stores", edge="edge-1")
    limits = Limits(keep_alive_seconds=0.2, request_seconds=5.0, drain_seconds=1)
    with deployed(tmp_path, limits, stores=stores) as deployment:
        region = deployment.region
        region.script = lambda submit: answer(f"answer {len(region.streams)}")
        yield deployment


def post(edge: Deployment, path: str, headers: dict[str, str], **body: Any) -> httpx.Response:
    return edge.client.post(path, json=body, headers=headers)


def run(edge: Deployment, headers: dict[str, str], **body: Any) -> httpx.Response:
    return post(edge, edge.run_path, headers, **{"prompt": "hi", **GREEDY, **body})


def status(response: httpx.Response) -> str | None:
    assert response.status_code == 200, response.text
    return response.headers.get("cf-aig-cache-status")


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    said: str = response.json()["result"]["response"]
    return said


def total(edge: Deployment) -> Totals:
    journal = edge.edge.stores.journal
    assert journal is not None
    assert journal.flush()
    with journals([journal.path]) as database:
        (all_of_it,) = totals(database)
    return all_of_it


# --- the response cache --------------------------------------------------------------------------


def test_without_a_header_nothing_is_kept(edge: Deployment) -> None:
    assert [status(run(edge, {})) for _ in range(2)] == [None, None]
    assert len(edge.region.streams) == 2


def test_the_second_time_it_is_a_hit(edge: Deployment) -> None:
    first, second = run(edge, CACHED), run(edge, CACHED)
    assert (status(first), status(second)) == ("MISS", "HIT")
    assert first.json() == second.json()
    assert len(edge.region.streams) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": "ho"},
        {"max_tokens": 9},
        {"temperature": 0.7, "seed": 1},
        {"top_k": 2, "temperature": 0.7, "seed": 1},
        {"stop": "x"},
        {"raw": True},
        {"repetition_penalty": 1.5},
    ],
    ids=str,
)
def test_another_request_is_another_answer(edge: Deployment, change: dict[str, Any]) -> None:
    run(edge, CACHED)
    assert status(run(edge, CACHED, **change)) == "MISS"


def test_what_two_numeric_builds_made_together_is_not_kept(edge: Deployment) -> None:
    mixed = {**CACHED, "x-skerry-mixed-builds": "1"}
    assert [status(run(edge, mixed)) for _ in range(2)] == ["MISS", "MISS"]
    assert status(run(edge, CACHED)) == "MISS"


def test_a_sampled_answer_is_kept_for_who_asks_for_it(edge: Deployment) -> None:
    """As AI Gateway does: two requests draw seeds of their own, and the second gets the first's
    answer."""
    free = {"temperature": 0.7}
    first, second = (run(edge, CACHED, **free) for _ in range(2))
    assert (status(first), status(second)) == ("MISS", "HIT")
    assert text(first) == text(second)
    assert status(run(edge, CACHED, temperature=0.8)) == "MISS"
    seeded = {"temperature": 0.7, "seed": 3}
    assert [status(run(edge, CACHED, **seeded)) for _ in range(2)] == ["MISS", "HIT"]


def test_a_key_alone_keeps_an_answer(edge: Deployment) -> None:
    named = {"cf-aig-cache-key": "greeting"}
    assert [status(run(edge, named, temperature=0.9)) for _ in range(2)] == ["MISS", "HIT"]


def test_the_older_names_of_headers_count(edge: Deployment) -> None:
    old = {"cf-cache-ttl": "600"}
    assert [status(run(edge, old)) for _ in range(2)] == ["MISS", "HIT"]
    assert status(run(edge, old | {"cf-skip-cache": "true"})) is None


def test_gateways_have_their_answers_apart(edge: Deployment) -> None:
    one, other = (CACHED | {"cf-aig-gateway-id": name} for name in ("one", "other"))
    told = [status(run(edge, headers)) for headers in (CACHED, one, other, one, CACHED)]
    assert told == ["MISS", "MISS", "MISS", "HIT", "HIT"]


def test_a_key_of_the_callers_own_stands_for_any_request(edge: Deployment) -> None:
    named = {**CACHED, "cf-aig-cache-key": "greeting"}
    first = run(edge, named, prompt="hi", temperature=0.9)
    second = run(edge, named, prompt="hello there", temperature=0.9)
    assert (status(first), status(second)) == ("MISS", "HIT")
    assert text(first) == text(second)
    assert status(run(edge, named, stop=["e"])) == "MISS"  # the form that it has to be told in


def test_skipped(edge: Deployment) -> None:
    run(edge, CACHED)
    skipping = {**CACHED, "cf-aig-skip-cache": "true"}
    assert status(run(edge, skipping)) is None
    assert len(edge.region.streams) == 2
    assert status(run(edge, CACHED)) == "HIT"


def test_a_wrong_header_is_told(edge: Deployment) -> None:
    response = run(edge, {"cf-aig-cache-ttl": "soon"})
    assert response.status_code == 400
    assert "cf-aig-cache-ttl" in response.text


def test_a_stream_is_told_as_a_stream(edge: Deployment) -> None:
    first = run(edge, CACHED, stream=True)
    second = run(edge, CACHED, stream=True)
    assert (status(first), status(second)) == ("MISS", "HIT")

    def without_padding(response: httpx.Response) -> list[Any]:
        told = events(response.text)
        return [{**each, "p": None} if isinstance(each, dict) else each for each in told]

    assert without_padding(first) == without_padding(second)
    assert len(without_padding(first)) > 3
    whole = run(edge, CACHED)  # the same answer, told at once
    assert status(whole) == "HIT"
    assert text(whole) == "answer 0"


def test_chat_completions_have_an_id_of_their_own(edge: Deployment) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], **GREEDY, "n": 2}
    asked |= {"logprobs": True, "top_logprobs": 2}
    first, second = (post(edge, edge.chat_path, CACHED, **asked) for _ in range(2))
    assert (status(first), status(second)) == ("MISS", "HIT")
    one, other = first.json(), second.json()
    assert one.pop("id") != other.pop("id")
    assert {**one, "created": 0} == {**other, "created": 0}
    streamed = post(edge, edge.chat_path, CACHED, **asked, stream=True)
    assert status(streamed) == "HIT"
    said = [c["delta"].get("content", "") for e in events(streamed.text)[:-1] for c in e["choices"]]
    assert sorted("".join(said)) == sorted("answer 0answer 1")


def test_every_dialect_that_makes_text(edge: Deployment) -> None:
    base = f"/client/v4/accounts/{ACCOUNT}/ai/v1"
    message = [{"role": "user", "content": "x"}]
    for path, asked in (
        ("/completions", {"prompt": ["x", "y"], "echo": True, "logprobs": 1, "max_tokens": 9}),
        ("/messages", {"messages": message, "max_tokens": 20}),
        ("/responses", {"input": "x", "store": False}),
    ):
        answers = [post(edge, base + path, CACHED, model=MODEL, **asked, **GREEDY) for _ in "12"]
        assert [status(each) for each in answers] == ["MISS", "HIT"], path
        assert answers[0].text.count("answer") == answers[1].text.count("answer") > 0


def test_a_stop_string_ends_it_again(edge: Deployment) -> None:
    stopped = [run(edge, CACHED, stop=["er"]) for _ in range(2)]
    assert [status(each) for each in stopped] == ["MISS", "HIT"]
    assert [text(each) for each in stopped] == ["answ", "answ"]


def test_what_failed_or_was_left_is_not_kept(edge: Deployment) -> None:
    script = edge.region.script
    edge.region.script = lambda submit: [[65], Unavailable("gone")]
    assert run(edge, CACHED).status_code == 503
    edge.region.script = lambda submit: [[65], Hold()]
    with edge.client.stream(
        "POST", edge.run_path, json={"prompt": "hi", **GREEDY, "stream": True}, headers=CACHED
    ) as response:
        next(response.iter_lines())
    edge.region.script = script
    assert status(run(edge, CACHED)) == "MISS"


def test_nobody_gets_another_tenants_answer(edge: Deployment) -> None:
    run(edge, CACHED)
    token, _ = edge.edge.tokens.create(account_id="f" * 32, now=0)
    other = edge.client.post(
        f"/client/v4/accounts/{'f' * 32}/ai/run/{MODEL}",
        json={"prompt": "hi", **GREEDY},
        headers={**CACHED, "authorization": f"Bearer {token}"},
    )
    assert status(other) == "MISS"


def test_the_operators_default(tmp_path: Path) -> None:
    stores = Stores.in_folder(tmp_path / "stores", edge="e", cache_ttl=60)
    with deployed(tmp_path, Limits(drain_seconds=1), stores=stores) as edge:
        assert [status(run(edge, {})) for _ in range(2)] == ["MISS", "HIT"]
        assert status(run(edge, {"cf-aig-cache-ttl": "0"})) is None
        sampled = [status(run(edge, {}, temperature=0.7)) for _ in range(2)]
        assert sampled == ["MISS", "MISS"]  # nobody asked for the same again


# --- idempotency keys ----------------------------------------------------------------------------

KEYED = {"idempotency-key": "order-66"}


def test_a_retry_gets_the_same_answer_and_is_counted_once(edge: Deployment) -> None:
    first = run(edge, KEYED, temperature=0.8)
    second = run(edge, KEYED, temperature=0.8)
    assert text(first) == text(second) == "answer 0"
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    counted = total(edge)
    assert (counted.requests, counted.completed) == (1, 1)
    assert counted.output_tokens == len("answer 0") + 1


def test_a_key_without_its_answer_keeps_its_seed(edge: Deployment, tmp_path: Path) -> None:
    run(edge, KEYED, temperature=0.8)
    run(edge, {"idempotency-key": "another"}, temperature=0.8)
    run(edge, {}, temperature=0.8)
    first, other, free = (submit.sampling.seed for submit in edge.region.submits)
    assert len({first, other, free}) == 3
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with deployed(elsewhere, Limits(drain_seconds=1)) as second:  # the same secret, no store
        run(second, KEYED, temperature=0.8)
        assert second.region.submits[0].sampling.seed == first


def test_another_edge_of_the_folder_gives_the_answer(edge: Deployment, tmp_path: Path) -> None:
    run(edge, KEYED, temperature=0.8)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    stores = Stores.in_folder(tmp_path / "stores", edge="edge-2")
    with deployed(elsewhere, Limits(drain_seconds=1), stores=stores) as second:
        assert text(run(second, KEYED, temperature=0.8)) == "answer 0"
        assert run(second, KEYED, prompt="something else").status_code == 422
        assert second.region.streams == []
        assert total(second).requests == 1


def test_a_seed_in_the_body_is_taken(edge: Deployment) -> None:
    run(edge, KEYED, temperature=0.8, seed=5)
    assert edge.region.submits[0].sampling.seed == 5


def test_a_retry_after_a_failure_runs(edge: Deployment) -> None:
    script = edge.region.script
    edge.region.script = lambda submit: [[65], Unavailable("gone")]
    assert run(edge, KEYED).status_code == 503
    edge.region.script = script
    assert text(run(edge, KEYED)) == "answer 1"
    counted = total(edge)
    assert (counted.requests, counted.completed, counted.failed) == (1, 1, 0)


def test_a_key_of_long_ago_is_a_new_one(tmp_path: Path) -> None:
    clock = Clock(1_000_000.0)
    folder = tmp_path / "stores"
    stores = Stores(
        idempotency=IdempotencyKeys(folder / "idempotency.db", clock=clock),
        journal=UsageJournal(folder / "usage.db", edge="e"),
    )
    with deployed(tmp_path, Limits(drain_seconds=1), stores=stores) as edge:
        run(edge, KEYED)
        clock.now += 24 * 3600
        assert text(run(edge, KEYED, prompt="something else")) == "Hello"
        assert total(edge).requests == 2


def test_the_model_in_a_header_is_part_of_the_request(edge: Deployment) -> None:
    for model, status_code in ((MODEL, 200), (MODEL, 200), (CHAT, 422)):
        headers = {**KEYED, "cf-consn-model-id": model}
        asked = {"inputs": {"prompt": "hi"}}
        assert post(edge, "/run", headers, **asked).status_code == status_code


def test_the_query_is_part_of_the_request(edge: Deployment) -> None:
    for query, status_code in (("", 200), ("?", 200), ("?queueRequest=false", 422)):
        asked = {"prompt": "hi", **GREEDY}
        assert post(edge, edge.run_path + query, KEYED, **asked).status_code == status_code


def test_another_body_is_refused(edge: Deployment) -> None:
    run(edge, KEYED)
    response = run(edge, KEYED, prompt="something else")
    assert response.status_code == 422
    assert "idempotency-key" in response.text
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    refused = post(edge, edge.chat_path, KEYED, **chat)
    assert refused.json()["error"]["code"] == "idempotency_mismatch"
    assert len(edge.region.streams) == 1


@pytest.mark.parametrize("key", ["", "k" * 256, "k\u00e9".encode("latin-1").decode("latin-1")])
def test_a_key_that_is_none(edge: Deployment, key: str) -> None:
    headers = [(b"idempotency-key", key.encode("latin-1"))]
    response = edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=headers)
    assert response.status_code == 400
    assert "idempotency-key" in response.text


# --- what is counted -----------------------------------------------------------------------------


def test_usage_by_phase(edge: Deployment) -> None:
    edge.region.script = lambda submit: [list(b"Hello"), done("length", 5, cached_tokens=3)]
    answered = run(edge, {}, raw=True, prompt="abcdef").json()["result"]["usage"]
    counted = total(edge)
    assert counted.prompt_tokens == answered["prompt_tokens"]
    assert counted.cached_tokens == answered["prompt_tokens_details"]["cached_tokens"] == 3
    assert counted.output_tokens == answered["completion_tokens"] == 5
    prompt_tokens = counted.prompt_tokens
    assert counted.cost == pytest.approx(((prompt_tokens - 3) * 0.5 + 3 * 0.1 + 5 * 2.0) * 1e-6)


def test_a_hit_counts_as_such_and_costs_nothing(edge: Deployment) -> None:
    run(edge, CACHED)
    before = total(edge)
    run(edge, CACHED)
    after = total(edge)
    assert (after.requests, after.cached_responses) == (2, 1)
    assert (after.output_tokens, after.cost) == (before.output_tokens, before.cost)


def test_failures_and_those_who_left(edge: Deployment) -> None:
    edge.region.script = lambda submit: [[65], Unavailable("gone")]
    run(edge, {})
    edge.region.script = lambda submit: [[65, 66], Hold()]
    with edge.client.stream(
        "POST", edge.run_path, json={"prompt": "hi", "stream": True}
    ) as response:
        next(response.iter_lines())
    assert edge.region.streams[-1].aborted.wait(60)
    counted = total(edge)
    assert (counted.failed, counted.cancelled, counted.running) == (1, 1, 0)
    assert counted.output_tokens == 3


def test_nobody_pays_for_a_bug(edge: Deployment) -> None:
    edge.region.script = lambda submit: [[65], RuntimeError("a bug")]
    assert run(edge, {}).status_code == 500
    counted = total(edge)
    assert (counted.failed, counted.cancelled, counted.cost) == (1, 0, 0.0)


def test_who_reached_a_limit_of_its_own_pays_for_what_came(edge: Deployment) -> None:
    edge.region.script = lambda submit: [[65], QuotaExceeded("the token's money is spent")]
    assert run(edge, {}).status_code == 429
    counted = total(edge)
    assert (counted.failed, counted.cancelled, counted.output_tokens) == (0, 1, 1)
    assert counted.cost > 0


def test_cached_prompt_tokens_are_told_in_every_dialect(edge: Deployment) -> None:
    edge.region.script = lambda submit: [list(b"Hello"), done("length", 5, cached_tokens=3)]
    message = [{"role": "user", "content": "hello"}]
    base = f"/client/v4/accounts/{ACCOUNT}/ai/v1"
    told = []
    for path, asked, field in (
        (edge.run_path, {"prompt": "hello"}, "prompt_tokens_details"),
        (f"{base}/chat/completions", {"messages": message}, "prompt_tokens_details"),
        (f"{base}/completions", {"prompt": "hello"}, "prompt_tokens_details"),
        (f"{base}/responses", {"input": "hello", "store": False}, "input_tokens_details"),
        (f"{base}/messages", {"messages": message, "max_tokens": 5}, "cache_read_input_tokens"),
    ):
        answered = post(edge, path, {}, model=MODEL, **asked).json()
        told.append(answered.get("result", answered)["usage"][field])
        streamed = post(
            edge, path, {}, model=MODEL, **asked, stream=True,
            **({"stream_options": {"include_usage": True}} if "v1/c" in path else {}),
        )  # fmt: skip
        assert f'"{field}":{msgspec.json.encode(told[-1]).decode()}' in streamed.text, path
    written = {"cache_write_tokens": 0}
    assert told == [*[{"cached_tokens": 3}] * 3, {"cached_tokens": 3} | written, 3]


def test_refused_requests_leave_no_row(edge: Deployment) -> None:
    def refuse(submit: object) -> Any:
        raise Unavailable("no node")

    edge.region.script = refuse
    assert run(edge, {}).status_code == 503
    assert total(edge).requests == 0


def test_an_account_reads_its_own_usage(edge: Deployment) -> None:
    run(edge, {})
    response = edge.client.get(USAGE, params={"by": "model,day", "since": "1d"})
    (line,) = response.json()["result"]
    assert (line["model"], line["requests"], line["completed"]) == (MODEL, 1, 1)
    assert line["cost"] == pytest.approx(line["prompt_cost"] + line["output_cost"])
    (nothing,) = edge.client.get(USAGE, params={"since": "2100-01-01"}).json()["result"]
    assert nothing["requests"] == 0
    for wrong in ({"by": "prompt"}, {"since": "soon"}):
        assert edge.client.get(USAGE, params=wrong).status_code == 400


def test_usage_does_not_wait_for_a_disk_that_takes_nothing(edge: Deployment) -> None:
    run(edge, {})
    assert total(edge).requests == 1
    journal = edge.edge.stores.journal
    assert journal is not None
    with contextlib.closing(sqlite3.connect(journal.path)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        run(edge, {})
        (line,) = edge.client.get(USAGE).json()["result"]
    assert line["requests"] == 1
    assert total(edge).requests == 2


def test_usage_of_too_long_a_time_is_refused(
    edge: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(edge, {})
    assert total(edge).requests == 1
    monkeypatch.setattr(usage_routes, "READ_SECONDS", -1.0)
    monkeypatch.setattr(usage_report, "CLOCK_INSTRUCTIONS", 1)
    response = edge.client.get(USAGE)
    assert response.status_code == 400
    assert "ask for a shorter one" in response.json()["errors"][0]["message"]


def test_usage_is_read_by_one_at_a_time(edge: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_routes, "TURN_SECONDS", 0.0)
    journal = edge.edge.stores.journal
    assert journal is not None
    asyncio.run(journal.reporting.acquire())
    response = edge.client.get(USAGE)
    assert (response.status_code, response.json()["errors"][0]["code"]) == (429, Overloaded.number)
    journal.reporting.release()
    monkeypatch.undo()
    assert edge.client.get(USAGE).status_code == 200


def test_usage_wants_a_scope_and_ones_own_account(edge: Deployment) -> None:
    token, _ = edge.edge.tokens.create(account_id=ACCOUNT, scopes=("run",), now=0)
    other, _ = edge.edge.tokens.create(account_id="f" * 32, now=0)
    for each, status_code in ((token, 403), (other, 404)):
        headers = {"authorization": f"Bearer {each}"}
        assert edge.client.get(USAGE, headers=headers).status_code == status_code
    own = edge.client.get(
        f"/client/v4/accounts/{'f' * 32}/ai/usage", headers={"authorization": f"Bearer {other}"}
    )
    assert own.json()["result"][0]["requests"] == 0


def test_usage_of_all_accounts_is_for_operators(edge: Deployment) -> None:
    theirs, _ = edge.edge.tokens.create(account_id="f" * 32, now=0)
    edge.client.post(
        f"/client/v4/accounts/{'f' * 32}/ai/run/{MODEL}", json={"prompt": "hi"},
        headers={"authorization": f"Bearer {theirs}"},
    )  # fmt: skip
    run(edge, {})
    operator, _ = edge.edge.tokens.create(account_id=ACCOUNT, role="operator", now=0)
    headers = {"authorization": f"Bearer {operator}"}
    every = edge.client.get(f"{USAGE}?accounts=all&by=tenant", headers=headers).json()["result"]
    assert {each["tenant"]: each["requests"] for each in every} == {ACCOUNT: 1, "f" * 32: 1}
    own = edge.client.get(f"{USAGE}?by=tenant", headers=headers).json()["result"]
    assert [each["tenant"] for each in own] == [ACCOUNT]
    assert edge.client.get(f"{USAGE}?accounts=all").status_code == 403  # a developer
    assert edge.client.get(f"{USAGE}?accounts=some", headers=headers).status_code == 400
