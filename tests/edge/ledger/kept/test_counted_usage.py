"""What is counted of requests, and who may read it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from typing import Any

import msgspec
import pytest
from tests.edge.ledger.kept.answered import CACHED, post, run, total
from tests.edge.scripted_region import MODEL, Hold, done
from tests.edge.support import ACCOUNT, Deployment

from skerry.errors import Overloaded, QuotaExceeded, Unavailable
from skerry_edge.api.documents import usage_routes
from skerry_edge.ledger import usage_report

USAGE = f"/client/v4/accounts/{ACCOUNT}/ai/usage"


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
