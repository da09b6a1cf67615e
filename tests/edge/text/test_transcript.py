"""Ids to text with stops and log-probabilities, whatever the steps look like."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.edge.byte_text import EOS, ByteText

from skerry_edge.text.transcript import Transcript

text_with_stop = st.text(alphabet="ab€\n", max_size=30)


class Words:
    """A vocabulary of two tokens that are longer than a character."""

    def token_bytes(self, token_id: int) -> bytes:
        return {1: b"one ", 2: b"two. Three"}[token_id]

    def detokenizer(self) -> Words:
        return self

    def push(self, ids: Iterable[int]) -> str:
        return "".join(self.token_bytes(each).decode() for each in ids)

    def flush(self) -> str:
        return ""


def transcript(*stops: str) -> Transcript:
    return Transcript(ByteText(), stop_token_ids=frozenset({EOS}), stops=stops)


def play(
    subject: Transcript, ids: list[int], cuts: list[int], logprobs: bool
) -> tuple[str, list[bytes]]:
    """Push `ids` in steps that end at `cuts`, as a region would; collect text and entries."""
    text, entries = "", []
    bounds = [0, *sorted({cut for cut in cuts if cut < len(ids)}), len(ids)]
    for start, end in pairwise(bounds):
        step = ids[start:end]
        given_logprobs = [(-1.0, []) for _ in step] if logprobs else None
        piece, released = subject.push(step, given_logprobs)
        text += piece
        entries += [bytes(each.bytes) for each in released]
        if subject.stopped:
            return text, entries
    piece, released = subject.finish()
    return text + piece, entries + [bytes(each.bytes) for each in released]


@given(text_with_stop, st.lists(st.integers(1, 90)), st.booleans(), st.booleans())
def test_any_steps_spell_the_text(text: str, cuts: list[int], logprobs: bool, end: bool) -> None:
    ids = [*text.encode(), *([EOS] if end else [])]
    subject = transcript()
    got, entries = play(subject, ids, cuts, logprobs)
    assert got == text
    assert subject.num_tokens == len(ids)
    assert b"".join(entries) == (text.encode() if logprobs else b"")


@given(
    text_with_stop,
    st.lists(st.text(alphabet="ab€\n", min_size=1, max_size=3), min_size=1, max_size=3),
    st.lists(st.integers(1, 90)),
    st.booleans(),
)
def test_any_steps_stop_at_the_same_place(
    text: str, stops: list[str], cuts: list[int], logprobs: bool
) -> None:
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    subject = transcript(*stops)
    got, entries = play(subject, list(text.encode()), cuts, logprobs)
    assert subject.stopped == bool(ends)
    if not ends:
        assert got == text
        assert subject.num_tokens == len(text.encode())
        return
    found = min(ends)
    longest = max(len(stop) for stop in stops if text[:found].endswith(stop))
    assert got == text[: found - longest]
    assert subject.num_tokens == len(text[:found].encode())
    assert b"".join(entries) == (got.encode() if logprobs else b"")


def test_half_a_character_at_the_end_is_replaced() -> None:
    assert play(transcript(), [0x61, 0xE2, 0x82], [1], False) == ("a\ufffd", [])


def test_a_stop_inside_a_token_keeps_its_entry() -> None:
    """A token that begins before the stop and ends behind it has given some of its text."""

    subject = Transcript(Words(), stops=(". ",))
    text, entries = subject.push([1, 2, 1], [(-1.0, [])] * 3)
    assert (text, subject.num_tokens) == ("one two", 2)
    assert [entry.token for entry in entries] == ["one ", "two. Three"]


def test_impossible_logprobs_stay_json() -> None:
    _, entries = transcript().push([65], [(-float("inf"), [(66, 1e-9)])])
    assert (entries[0].logprob, entries[0].top_logprobs[0].logprob) == (-9999.0, 0.0)
