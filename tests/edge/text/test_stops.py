"""Stop strings against a plain search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_edge.text.stops import StopMatcher

WORDS = st.text("ab", max_size=6)


def naive(text: str, stops: list[str]) -> tuple[str, bool]:
    """Text before the stop string that is complete first; the longest of those ending there."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def held_back(text: str, stops: list[str]) -> int:
    """Length of the longest end of the text that begins a stop string."""
    return max(
        n
        for n in range(len(text) + 1)
        if n == 0 or any(len(stop) > n and stop.startswith(text[-n:]) for stop in stops)
    )


@given(st.lists(WORDS, max_size=4), st.lists(WORDS, max_size=12))
def test_equals_a_search_of_the_whole_text(stops: list[str], chunks: list[str]) -> None:
    matcher = StopMatcher(stops)
    sent, stopped = "", False
    for chunk in chunks:
        piece, stopped = matcher.push(chunk)
        sent += piece
    assert (sent + matcher.flush(), stopped) == naive("".join(chunks), stops)
    assert matcher.stopped == stopped


@given(st.lists(WORDS, max_size=4), st.lists(WORDS, max_size=12))
def test_holds_back_no_more_than_it_must(stops: list[str], chunks: list[str]) -> None:
    matcher = StopMatcher(stops)
    text = sent = ""
    for chunk in chunks:
        text += chunk
        piece, stopped = matcher.push(chunk)
        sent += piece
        if stopped:
            return
        assert len(text) - len(sent) == held_back(text, stops)


@pytest.mark.parametrize(
    ("stops", "chunks", "pieces"),
    [
        (["END"], ["one E", "N", "D two"], ["one ", "", ""]),
        (["END"], ["one E", "NO"], ["one ", "ENO"]),
        (["\n\n"], ["a\n", "b\n", "\nc"], ["a", "\nb", ""]),
        (["abcd", "bc"], ["abcd"], ["a"]),
        (["bc", "abc"], ["abc"], [""]),
        ([], ["anything"], ["anything"]),
        ([""], ["anything"], ["anything"]),
    ],
)
def test_pieces(stops: list[str], chunks: list[str], pieces: list[str]) -> None:
    matcher = StopMatcher(stops)
    assert [matcher.push(chunk)[0] for chunk in chunks] == pieces


def test_nothing_comes_after_a_stop() -> None:
    matcher = StopMatcher(["!"])
    assert matcher.push("a!b") == ("a", True)
    assert matcher.push("c") == ("", True)
    assert matcher.flush() == ""
