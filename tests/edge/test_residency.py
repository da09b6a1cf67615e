"""Requests bound to a zone by their token or a header, at an edge inside and outside of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.edge.support import ACCOUNT, MODEL, Deployment, deployed

from skerry_edge.limits import Limits
from skerry_edge.residency import HEADER

SECRET = "the recipe of my grandmother"


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Deployment]:
    with deployed(tmp_path, Limits(), zone="eu") as deployment:
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
    assert free == edge.edge.cache_key(ACCOUNT)
    assert bound == edge.edge.cache_key(ACCOUNT, "eu") != free
    assert bound != edge.edge.cache_key(ACCOUNT, "us")


def test_what_goes_on_from_a_bound_conversation_is_bound(edge: Deployment) -> None:
    body: dict[str, object] = {"model": MODEL, "input": SECRET}
    headers = {HEADER: "eu"}
    for _ in range(3):  # the second goes on from a bound one, the third from one that became so
        answered = edge.client.post("/v1/responses", json=body, headers=headers).json()
        body["previous_response_id"], headers = answered["id"], {}
    assert [submit.residency for submit in edge.region.submits] == ["eu"] * 3


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
