"""Why a request runs where it does, in a header, for those who ask."""

from __future__ import annotations

import pytest
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
