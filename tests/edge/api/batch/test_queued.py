"""`?queueRequest=true`: Workers AI's async batch."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.edge.ledger.journal_rows import flush
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import ACCOUNT, CHAT, Deployment, eventually

from skerry.errors import IdempotencyMismatch, InvalidInput, Overloaded
from skerry_edge.api.batch.target import decode_target
from skerry_edge.ledger.usage_report import journals
from skerry_regions.queue import Claim
from skerry_regions.wire.protocol import Submit


def queue(edge: Deployment, body: Any, **options: Any) -> httpx.Response:
    return edge.client.post(edge.run_path, params={"queueRequest": "true"}, json=body, **options)


def submitted(edge: Deployment, body: Any) -> str:
    response = queue(edge, body)
    assert response.status_code == 200, response.text
    result = response.json()["result"]
    assert result == {"status": "queued", "request_id": result["request_id"], "model": MODEL}
    return str(result["request_id"])


def answers(edge: Deployment, request_id: str) -> dict[str, Any]:
    def told() -> dict[str, Any] | None:
        response = queue(edge, {"request_id": request_id})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "application/json"
        body = response.json()
        assert body["success"] is True
        result: dict[str, Any] = body["result"]
        if "responses" in result:
            return result
        assert result["status"] in ("queued", "running")
        return None

    found: dict[str, Any] = eventually(told)
    return found


def echo(submit: Submit) -> Any:
    """Say the prompt again."""
    text = bytes(id for id in submit.prompt_ids if id < 256).decode()
    return answer(text.partition("<user>")[2].partition("\n")[0])


def test_requests_are_answered_later(edge: Deployment) -> None:
    edge.region.script = echo
    requests = [{"prompt": f"p{i}", "external_reference": f"ref-{i}"} for i in range(5)]
    result = answers(edge, submitted(edge, {"requests": requests}))
    told = sorted(result["responses"], key=lambda each: each["id"])
    assert [each["result"]["response"] for each in told] == [f"p{i}" for i in range(5)]
    assert [each["external_reference"] for each in told] == [f"ref-{i}" for i in range(5)]
    assert all(each["success"] is True for each in told)
    usages = [each["result"]["usage"] for each in told]
    assert result["usage"] == {
        name: sum(usage[name] for usage in usages)
        for name in ("prompt_tokens", "completion_tokens", "total_tokens")
    }


def test_they_run_in_the_batch_class_with_seeds_of_their_own(edge: Deployment) -> None:
    answers(edge, submitted(edge, {"requests": [{"prompt": "a"}, {"prompt": "b", "seed": 7}]}))
    submits = edge.region.submits
    assert [each.priority for each in submits] == ["batch", "batch"]
    assert {each.tenant for each in submits} == {ACCOUNT}
    seeds = {each.sampling.seed for each in submits}
    assert 7 in seeds
    assert len(seeds) == 2
    edge.run(prompt="now")
    assert edge.region.submits[-1].priority == "interactive"


def test_one_request_needs_no_list(edge: Deployment) -> None:
    request_id = submitted(edge, {"prompt": "x", "external_reference": "mine"})
    [told] = answers(edge, request_id)["responses"]
    assert (told["id"], told["external_reference"], told["success"]) == (0, "mine", True)
    assert told["result"]["response"] == "Hello"


def test_a_request_fails_by_itself(edge: Deployment) -> None:
    requests = [{"prompt": "x"}, {"prompt": "x", "temperature": 99}, {}]
    told = answers(edge, submitted(edge, {"requests": requests}))["responses"]
    by_id = {each["id"]: each for each in told}
    assert by_id[0]["success"] is True
    assert "external_reference" not in by_id[0]
    assert by_id[1]["success"] is False
    assert by_id[1]["result"] == {}
    assert by_id[1]["errors"][0]["code"] == 5006
    assert "temperature" in by_id[1]["errors"][0]["message"]
    assert by_id[2]["errors"][0]["code"] == 5006


def test_a_busy_moment_is_waited_for(edge: Deployment) -> None:
    said: list[Any] = [Overloaded("Full.", retry_after=0.0)]

    def script(submit: Submit) -> Any:
        if said:
            raise said.pop()
        return answer("later")

    edge.region.script = script
    attempts = edge.edge.metrics.batch_attempts
    deferred, succeeded = (attempts.value(MODEL, each) for each in ("deferred", "succeeded"))
    [told] = answers(edge, submitted(edge, {"prompt": "x"}))["responses"]
    assert told["result"]["response"] == "later"
    assert attempts.value(MODEL, "deferred") == deferred + 1
    assert attempts.value(MODEL, "succeeded") == succeeded + 1


def test_chat_models_answer_in_their_own_form(edge: Deployment) -> None:
    path = edge.run_path.replace(MODEL, CHAT)
    params = {"queueRequest": "true"}
    sent = edge.client.post(path, params=params, json={"requests": [{"prompt": "x"}]})
    request_id = sent.json()["result"]["request_id"]
    assert queue(edge, {"request_id": request_id}).status_code == 404  # of another model

    def done() -> Any:
        body = {"request_id": request_id}
        result = edge.client.post(path, params=params, json=body).json()["result"]
        return result if "responses" in result else None

    result = eventually(done)
    [told] = result["responses"]
    assert told["result"]["object"] == "chat.completion"
    assert told["result"]["choices"][0]["message"]["content"] == "Hello"
    assert result["usage"]["total_tokens"] == told["result"]["usage"]["total_tokens"]


def test_the_model_may_stand_in_the_body(edge: Deployment) -> None:
    path = f"/client/v4/accounts/{ACCOUNT}/ai/run"
    body = {"model": MODEL, "input": {"requests": [{"prompt": "x"}]}}
    response = edge.client.post(path, params={"queueRequest": "true"}, json=body)
    assert response.json()["result"]["status"] == "queued"


def test_the_binding_queues_by_an_option(edge: Deployment) -> None:
    def call(inputs: Any) -> Any:
        return edge.client.post(
            "/run?version=3",
            headers={"cf-consn-model-id": MODEL},
            json={"inputs": inputs, "options": {"queueRequest": True}},
        ).json()

    sent = call({"requests": [{"prompt": "x"}]})
    assert sent["status"] == "queued"
    asked = {"request_id": sent["request_id"]}
    eventually(lambda: "responses" in call(asked))
    assert call(asked)["responses"][0]["result"]["response"] == "Hello"


def test_a_retried_submission_is_one_batch(edge: Deployment) -> None:
    body = {"requests": [{"prompt": "x"}]}
    headers = {"idempotency-key": "once"}
    first, second = (queue(edge, body, headers=headers).json()["result"] for _ in range(2))
    assert first == second
    other = queue(edge, {"requests": [{"prompt": "y"}]}, headers=headers)
    assert other.status_code == 422
    assert other.json()["errors"][0]["code"] == IdempotencyMismatch.number


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"requests": []}, "requests: 1 to 10000, got 0"),
        ({"requests": [7]}, r"requests[0]"),
        ({"requests": [{"prompt": "x"}, {"prompt": "x", "stream": True}]}, "requests[1]"),
        ({"requests": [{"prompt": "x", "external_reference": 7}]}, "requests[0]"),
        ({"requests": "all"}, "requests"),
    ],
)
def test_what_is_no_batch_is_refused(edge: Deployment, body: Any, message: str) -> None:
    response = queue(edge, body)
    assert response.status_code == 400
    error = response.json()["errors"][0]
    assert error["code"] == InvalidInput.number
    assert message in error["message"]


def test_nobody_finds_anothers_batch(edge: Deployment) -> None:
    request_id = submitted(edge, {"prompt": "x"})
    other = "f" * 32
    token, _ = edge.edge.tokens.create(account_id=other, now=0)
    response = edge.client.post(
        edge.run_path.replace(ACCOUNT, other),
        params={"queueRequest": "true"},
        headers={"authorization": f"Bearer {token}"},
        json={"request_id": request_id},
    )
    assert response.status_code == 404
    assert queue(edge, {"request_id": "unknown"}).status_code == 404


def test_a_revoked_token_gets_nothing_more(edge: Deployment) -> None:
    token, record = edge.edge.tokens.create(account_id=ACCOUNT, now=0)

    def revoke(submit: Submit) -> Any:
        edge.edge.tokens.revoke(record.id)
        raise Overloaded("Full.", retry_after=0.0)  # so that the request is tried again

    edge.region.script = revoke
    sent = queue(edge, {"prompt": "x"}, headers={"authorization": f"Bearer {token}"})
    [told] = answers(edge, sent.json()["result"]["request_id"])["responses"]
    assert told["success"] is False
    assert told["errors"][0]["code"] == 10000
    assert edge.region.streams == []


def test_each_request_is_counted_once(edge: Deployment) -> None:
    said: list[Any] = [Overloaded("Full.", retry_after=0.0)]

    def script(submit: Submit) -> Any:
        if said:
            raise said.pop()
        return answer("Hello")

    edge.region.script = script
    request_id = submitted(edge, {"requests": [{"prompt": "x"}] * 3})
    used = answers(edge, request_id)["usage"]
    journal = edge.edge.stores.journal
    assert journal is not None
    assert flush(journal)
    with journals([journal.path]) as database:
        rows = database.execute(
            "SELECT id, outcome, tenant, prompt_tokens, output_tokens FROM usage"
            " WHERE id LIKE ? ORDER BY id",
            (f"{request_id}-%",),
        ).fetchall()
    assert [row[:3] for row in rows] == [
        (f"{request_id}-{index}", "completed", ACCOUNT) for index in range(3)
    ]
    assert sum(row[3] for row in rows) == used["prompt_tokens"]
    assert sum(row[4] for row in rows) == used["completion_tokens"]


def test_where_it_may_be_computed_goes_with_it(
    edge: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = edge.edge.batches
    assert batches is not None
    claim, claimed = batches.queue.claim, list[Claim]()

    def noted(*arguments: Any) -> list[Claim]:
        claimed.extend(found := claim(*arguments))
        return found

    monkeypatch.setattr(batches.queue, "claim", noted)
    headers = {"x-skerry-mixed-builds": "1", "x-other": "2"}
    request_id = queue(edge, {"prompt": "x"}, headers=headers).json()["result"]["request_id"]
    assert len(answers(edge, request_id)["responses"]) == 1
    [target] = [decode_target(each.target) for each in claimed]
    assert target.headers == {"x-skerry-mixed-builds": "1"}
