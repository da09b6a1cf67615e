"""Idempotency keys over HTTP: one answer and one count for a request that is sent again."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.clock import Clock
from tests.edge.ledger.kept.answered import GREEDY, post, run, text, total
from tests.edge.scripted_region import MODEL
from tests.edge.support import CHAT, Deployment, deployed

from skerry.errors import Unavailable
from skerry_edge.ledger.idempotency import IdempotencyKeys
from skerry_edge.ledger.stores import Stores
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.limits import Limits

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
