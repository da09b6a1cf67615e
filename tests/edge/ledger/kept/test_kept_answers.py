"""Answers given again over HTTP by the response cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.edge.ledger.kept.answered import CACHED, GREEDY, post, run, text
from tests.edge.scripted_region import MODEL, Hold
from tests.edge.support import ACCOUNT, Deployment, deployed, events

from skerry.errors import Unavailable
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits


def status(response: httpx.Response) -> str | None:
    assert response.status_code == 200, response.text
    return response.headers.get("cf-aig-cache-status")


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
