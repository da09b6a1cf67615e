"""Why a request runs where it does, in a header, for those who ask."""

from __future__ import annotations

import pytest
from tests.edge.scripted_region import Moved, done
from tests.edge.support import Deployment

TERMS = '"p0>d1";total=41.200;queue=10.000, "d1";total=52.000'
ASK = {"x-skerry-explain": "1"}


@pytest.mark.parametrize("stream", [False, True])
def test_who_asks_is_told_with_the_answer(edge: Deployment, stream: bool) -> None:
    edge.region.explanation = TERMS
    body = {"prompt": "hi", "stream": stream}
    answer = edge.client.post(edge.run_path, json=body, headers=ASK)
    assert answer.headers["x-skerry-explain"] == TERMS
    assert answer.status_code == 200


@pytest.mark.parametrize("headers", [{}, {"x-skerry-explain": "0"}])
def test_others_are_not(edge: Deployment, headers: dict[str, str]) -> None:
    edge.region.explanation = TERMS
    answer = edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=headers)
    assert "x-skerry-explain" not in answer.headers


def test_without_a_choice_there_is_nothing_to_explain(edge: Deployment) -> None:
    answer = edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=ASK)
    assert "x-skerry-explain" not in answer.headers


MOVED = '"d1";total=52.000;best-effort'


@pytest.mark.parametrize("stream", [False, True])
def test_a_failover_is_told(edge: Deployment, stream: bool) -> None:
    """In the header as long as there is time; in a comment between events after that."""
    edge.region.explanation = TERMS
    edge.region.script = lambda submit: [[72, 105], Moved(MOVED), [33], done("stop", 3)]
    body = {"prompt": "hi", "stream": stream}
    answer = edge.client.post(edge.run_path, json=body, headers=ASK)
    if stream:
        events = answer.text.split("\n\n")
        assert answer.headers["x-skerry-explain"] == TERMS
        assert events.count(f": x-skerry-explain: {MOVED}") == 1
        assert events[0].startswith("data: ")
    else:
        assert answer.headers["x-skerry-explain"] == MOVED
    assert "!" in answer.text


@pytest.mark.parametrize(("value", "consents"), [("1", True), ("0", False), (None, False)])
def test_kv_of_another_build_only_for_those_who_consent(
    edge: Deployment, value: str | None, consents: bool
) -> None:
    headers = {} if value is None else {"x-skerry-mixed-builds": value}
    answer = edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=headers)
    assert answer.status_code == 200
    assert edge.region.submits[-1].mixed_builds is consents
