"""Waiting for queued requests, without a platform."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import pytest

from skerry import InternalError, RequestTimeout
from skerry._batch import ask_until_done, submit
from skerry._exchange import Sleep, Step
from skerry._results import Result


class Platform:
    """Answers in turn, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[dict[str, Any], dict[str, str]]] = []

    def ask(self, body: dict[str, Any], headers: Mapping[str, str]) -> Generator[Step, Any, Any]:
        self.asked.append((body, dict(headers)))
        return self.answers.pop(0)
        yield


def drive(steps: Generator[Step, Any, Any]) -> tuple[Any, list[float]]:
    """What comes back, and the pauses before it."""
    pauses: list[float] = []
    try:
        while True:
            step = next(steps)
            assert isinstance(step, Sleep)
            pauses.append(step.seconds)
    except StopIteration as end:
        return end.value, pauses


def test_each_submission_has_a_key_of_its_own() -> None:
    platform = Platform(Result(request_id="a"), Result(request_id="b"))
    assert drive(submit(platform.ask, [{"prompt": "x"}]))[0] == "a"
    assert drive(submit(platform.ask, iter([{"prompt": "x"}])))[0] == "b"
    (body, first), (same, second) = platform.asked
    assert body == same == {"requests": [{"prompt": "x"}]}
    assert first["idempotency-key"] != second["idempotency-key"]


def test_questions_come_ever_more_rarely() -> None:
    done = Result(
        responses=[Result(id=1, success=True, result=7), Result(id=0, success=True, result=6)]
    )
    platform = Platform(*[Result(status="running")] * 12, done)
    answers, pauses = drive(ask_until_done(platform.ask, "id", None))
    assert [(each.index, each.result) for each in answers] == [(0, 6), (1, 7)]
    assert pauses[:3] == pytest.approx([0.1, 0.15, 0.225])
    assert pauses[-1] == 5.0
    assert {repr(asked) for asked in platform.asked} == {"({'request_id': 'id'}, {})"}


def test_patience_is_bounded() -> None:
    now = iter([0.0, 0.9, 1.0])
    platform = Platform(*[Result(status="queued")] * 2)
    with pytest.raises(RequestTimeout, match="Batch id is queued after 1 s") as late:
        drive(ask_until_done(platform.ask, "id", 1.0, lambda: next(now)))
    assert not late.value.retryable


@pytest.mark.parametrize("told", [Result(), [], Result(status="lost"), Result(responses=[7])])
def test_an_answer_that_tells_nothing(told: Any) -> None:
    with pytest.raises(InternalError):
        drive(ask_until_done(Platform(told).ask, "id", None))
    if not isinstance(told, Result) or "responses" not in told:
        with pytest.raises(InternalError):
            drive(submit(Platform(told).ask, []))
