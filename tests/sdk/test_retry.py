"""Retry decisions: pure functions of an error, an attempt, a clock and a draw."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry._retry import RetryPolicy, next_delay, retry_after, should_retry
from skerry.errors import ConnectionFailed, InternalError, ModelNotFound, Overloaded, SkerryError

POLICY = RetryPolicy(max_retries=5, base=0.5, cap=8.0, patience=60.0)
NOW = 1_800_000_000.0


def test_full_jitter_up_to_a_growing_bound() -> None:
    error = ConnectionFailed("gone")
    assert [next_delay(POLICY, error, n, lambda: 1.0) for n in range(5)] == [0.5, 1, 2, 4, 8]
    assert next_delay(POLICY, error, 3, lambda: 0.0) == 0.0
    assert next_delay(POLICY, error, 3, lambda: 0.25) == 1.0
    patient = RetryPolicy(max_retries=10_000)
    assert next_delay(patient, error, 9_999, lambda: 1.0) == 8.0


@pytest.mark.parametrize(
    ("error", "tries_again"),
    [
        (ConnectionFailed("x"), True),
        (Overloaded("x"), True),
        (InternalError("x"), True),
        (ModelNotFound("x"), False),
        (ModelNotFound("x", retryable=True), True),
        (Overloaded("x", retryable=False), False),
        (SkerryError("x"), False),
    ],
)
def test_only_what_a_retry_can_help(error: SkerryError, tries_again: bool) -> None:
    assert (next_delay(POLICY, error, 0, lambda: 0.5) is not None) is tries_again


def test_retries_run_out() -> None:
    assert next_delay(POLICY, Overloaded("x"), 4, lambda: 0.5) is not None
    assert next_delay(POLICY, Overloaded("x"), 5, lambda: 0.5) is None
    assert next_delay(RetryPolicy(max_retries=0), Overloaded("x"), 0, lambda: 0.5) is None


def test_more_patience_than_we_have() -> None:
    assert next_delay(POLICY, Overloaded("x", retry_after=60.0), 0, lambda: 0.0) == 60.0
    assert next_delay(POLICY, Overloaded("x", retry_after=61.0), 0, lambda: 0.0) is None


@given(wait=st.floats(0, 60), attempt=st.integers(0, 4), draw=st.floats(0, 1, exclude_max=True))
def test_never_sooner_than_asked_and_little_later(wait: float, attempt: int, draw: float) -> None:
    delay = next_delay(POLICY, Overloaded("x", retry_after=wait), attempt, lambda: draw)
    assert delay is not None
    assert wait <= delay <= 1.25 * wait


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW + 30).replace("-0000", "")}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "Fri, 99 Foo 2026 00:00:00 GMT"}, None),
    ],
)
def test_what_the_platform_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, NOW) == seconds


@given(value=st.text(max_size=40))
def test_any_header_is_survived(value: str) -> None:
    seconds = retry_after({"retry-after": value, "retry-after-ms": value[::-1]}, NOW)
    assert seconds is None or 0 <= seconds < float("inf")


@pytest.mark.parametrize(
    ("value", "word"), [("true", True), (" False ", False), ("1", None), ("", None), (None, None)]
)
def test_the_platforms_word(value: str | None, word: bool | None) -> None:
    assert should_retry({} if value is None else {"x-should-retry": value}) is word
