"""Requests bound to a zone by their token or a header, at an edge inside and outside of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, Deployment, deployed, eventually

from skerry_edge.gate.residency import HEADER
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits

SECRET = "the recipe of my grandmother"
BOUND = {HEADER: "eu"}


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Deployment]:
    stores = Stores.in_folder(tmp_path / "stores", edge="edge-1")
    with deployed(tmp_path, Limits(), zone="eu", stores=stores, keeps_batches=True) as deployment:
        yield deployment


def test_a_bound_request_says_so_to_its_region(edge: Deployment) -> None:
    assert edge.run(prompt=SECRET).status_code == 200
    edge.client.headers[HEADER] = "eu"
    assert edge.run(prompt=SECRET).status_code == 200
    assert edge.chat().status_code == 200
    free, bound, chat = edge.region.submits
    assert (free.residency, bound.residency, chat.residency) == (None, "eu", "eu")


def test_what_a_bound_request_caches_is_named_apart(edge: Deployment) -> None:
    edge.run(prompt=SECRET)
    edge.client.headers[HEADER] = "eu"
    edge.run(prompt=SECRET)
    free, bound = (submit.cache_key for submit in edge.region.submits)
    assert free == edge.edge.cache_keys[ACCOUNT, None]
    assert bound == edge.edge.cache_keys[ACCOUNT, "eu"] != free
    assert bound != edge.edge.cache_keys[ACCOUNT, "us"]


def test_what_goes_on_from_a_bound_conversation_is_bound(edge: Deployment) -> None:
    body: dict[str, object] = {"model": MODEL, "input": SECRET}
    headers = {HEADER: "eu"}
    for _ in range(3):  # the second goes on from a bound one, the third from one that became so
        answered = edge.client.post("/v1/responses", json=body, headers=headers).json()
        body["previous_response_id"], headers = answered["id"], {}
    assert [submit.residency for submit in edge.region.submits] == ["eu"] * 3


def test_what_is_kept_is_named_after_its_zone(edge: Deployment) -> None:
    answered = edge.client.post("/v1/responses", json={"model": MODEL, "input": "x"}).json()
    assert answered["id"].startswith("resp_eu.")
    assert edge.client.get(f"/v1/responses/{answered['id']}").json() == answered
    root = f"/client/v4/accounts/{ACCOUNT}/ai/v1"
    data, content = {"purpose": "batch"}, {"file": b"x"}
    uploaded = edge.client.post(f"{root}/files", data=data, files=content)
    assert uploaded.json()["id"].startswith("file-eu.")
    for path in ("/v1/responses/resp_us.1", f"{root}/files/file-us.1", f"{root}/batches/us.1"):
        refused = edge.client.get(path)
        assert refused.status_code == 404
        assert "kept in 'us': send it to an edge there" in refused.text


def message(edge: Deployment, geo: str | None, **headers: str) -> httpx.Response:
    body = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": SECRET}]}
    return edge.client.post("/v1/messages", json=body | {"inference_geo": geo}, headers=headers)


def test_inference_geo_of_messages_is_a_zone(edge: Deployment) -> None:
    eu, world, silent = message(edge, "eu"), message(edge, "global"), message(edge, None)
    bound, free, other = edge.region.submits
    assert (bound.residency, free.residency, other.residency) == ("eu", None, None)
    assert bound.cache_key == edge.edge.cache_keys[ACCOUNT, "eu"]
    assert eu.json()["usage"]["inference_geo"] == "eu"
    assert world.json()["usage"]["inference_geo"] == "global"
    assert "inference_geo" not in silent.json()["usage"]
    assert message(edge, "eu", **BOUND).status_code == 200
    assert message(edge, None, **BOUND).json()["usage"]["inference_geo"] == "eu"
    for geo, status, headers in (
        ("us", 421, {}), ("EU!", 400, {}), ("us", 400, BOUND), ("global", 400, BOUND),
    ):  # fmt: skip
        refused = message(edge, geo, **headers)
        assert refused.status_code == status
        assert refused.json()["error"]["type"] == "invalid_request_error"
        assert "inference_geo" in refused.text or status == 421
    assert len(edge.region.submits) == 5
    token, _ = edge.edge.tokens.create(account_id=ACCOUNT, role="developer", residency="eu", now=0)
    assert message(edge, "us", authorization=f"Bearer {token}").status_code == 400


def batch(edge: Deployment, *, uploaded: dict[str, str], submitted: dict[str, str]) -> None:
    """A batch of one chat that has ended."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}]}
    url = "/v1/chat/completions"
    line = json.dumps({"custom_id": "c", "method": "POST", "url": url, "body": body}).encode()
    root = f"/client/v4/accounts/{ACCOUNT}/ai/v1"

    def told(reply: httpx.Response) -> dict[str, str]:
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    file = told(
        edge.client.post(
            f"{root}/files", data={"purpose": "batch"}, files={"file": line}, headers=uploaded
        )
    )
    asked = {"input_file_id": file["id"], "endpoint": url, "completion_window": "24h"}
    id = told(edge.client.post(f"{root}/batches", json=asked, headers=submitted))["id"]
    eventually(lambda: told(edge.client.get(f"{root}/batches/{id}"))["status"] == "completed")


@pytest.mark.parametrize(
    ("uploaded", "submitted", "zone"),
    [(BOUND, {}, "eu"), ({}, BOUND, "eu"), ({}, {}, None)],
    ids=["file", "batch", "neither"],
)
def test_a_batch_is_bound_as_its_file_or_itself(
    edge: Deployment, uploaded: dict[str, str], submitted: dict[str, str], zone: str | None
) -> None:
    batch(edge, uploaded=uploaded, submitted=submitted)
    (submit,) = edge.region.submits
    assert submit.residency == zone


@pytest.mark.parametrize("own", [{}, {"cf-aig-cache-key": "mine"}], ids=["asked", "own"])
def test_a_bound_answer_is_given_to_bound_requests_alone(
    edge: Deployment, own: dict[str, str]
) -> None:
    cached = {"cf-aig-cache-ttl": "600", **own}

    def status(headers: dict[str, str]) -> str:
        body = {"prompt": SECRET, "temperature": 0}
        reply = edge.client.post(edge.run_path, json=body, headers={**cached, **headers})
        assert reply.status_code == 200
        return str(reply.headers["cf-aig-cache-status"])

    told = [status(headers) for headers in (BOUND, {}, BOUND, {})]
    assert told == ["MISS", "MISS", "HIT", "HIT"]


def test_an_idempotency_key_of_a_bound_request_is_for_bound_requests(edge: Deployment) -> None:
    def post(headers: dict[str, str]) -> httpx.Response:
        headers = {"idempotency-key": "k", **headers}
        return edge.client.post(edge.run_path, json={"prompt": SECRET}, headers=headers)

    assert post(BOUND).status_code == 200
    assert post({}).json()["errors"][0]["code"] == 5012
    assert post(BOUND).headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("path", ["run_path", "chat_path", "complete_path"])
def test_an_edge_outside_refuses_unread(edge: Deployment, path: str) -> None:
    reply = edge.client.post(getattr(edge, path), content=b"not even JSON", headers={HEADER: "us"})
    assert reply.status_code == 421
    error = reply.json()["errors"][0]
    assert error["code"] == 7011
    assert "bound to the zone 'us'; this edge is in 'eu'" in error["message"]
    assert edge.region.submits == []


def test_a_bound_token_needs_no_header_and_takes_no_other(tmp_path: Path) -> None:
    with deployed(tmp_path, Limits(), zone="us") as edge:
        token, _ = edge.edge.tokens.create(account_id=ACCOUNT, residency="eu", now=0)
        edge.client.headers["authorization"] = f"Bearer {token}"
        assert edge.run(prompt=SECRET).status_code == 421
        edge.client.headers[HEADER] = "us"
        reply = edge.run(prompt=SECRET)
        assert (reply.status_code, reply.json()["errors"][0]["code"]) == (403, 3023)
        assert "must stay in the zone 'eu'" in reply.text
        assert edge.region.submits == []


@pytest.mark.parametrize("value", ["", "EU", "eu,us", "../eu", "eu us", "e" * 64])
def test_a_header_that_names_no_zone(edge: Deployment, value: str) -> None:
    edge.client.headers[HEADER] = value
    reply = edge.run(prompt=SECRET)
    assert (reply.status_code, reply.json()["errors"][0]["code"]) == (400, 5006)


def test_two_zones_are_none(edge: Deployment) -> None:
    headers = [(HEADER, "eu"), (HEADER, "us")]
    reply = edge.client.post(edge.run_path, json={"prompt": "x"}, headers=headers)
    assert reply.status_code == 400


def test_whether_the_edge_is_well_may_be_asked_from_anywhere(edge: Deployment) -> None:
    assert edge.client.get("/healthz", headers={HEADER: "us"}).status_code == 200


def test_a_tokens_zone_is_kept_and_checked(edge: Deployment) -> None:
    _, record = edge.edge.tokens.create(account_id=ACCOUNT, residency="eu", now=0)
    assert record.residency == "eu"
    with pytest.raises(ValueError, match="a zone is a name"):
        edge.edge.tokens.create(account_id=ACCOUNT, residency="../eu", now=0)
