"""Marks in users' text: no control token survives, and the tokenizer drops every mark."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from skerry_edge.text.control_tokens import MARK, Guard, dropping_marks

TOKENS = ["<a>", "<a>b", "ab<"]
PIECES = st.lists(st.text("<a>b" + MARK + "\ufdd1", max_size=8), max_size=4)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    vocab = {character: id_ for id_, character in enumerate("<a>b" + MARK + "\ufdd1")}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(TOKENS)
    return dropping_marks(tokenizer)


@example(["ab<a>"])  # control tokens that overlap
@given(PIECES)
def test_marked_text_reads_as_it_was_written(tokenizer: Tokenizer, pieces: list[str]) -> None:
    guard = Guard(TOKENS)
    marked = "".join(map(guard.mark, pieces))
    assert not re.search("|".join(map(re.escape, TOKENS)), marked)
    if not any(piece.startswith("\ufdd1") for piece in pieces):
        assert tokenizer.encode(marked).tokens == list("".join(pieces))


@pytest.mark.parametrize("gap", [False, True])
def test_text_without_marks_reads_as_before(gap: bool) -> None:
    vocab = {character: id_ for id_, character in enumerate("<a>b ")}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_tokens([AddedToken("ba", normalized=False)])
    tokenizer.add_special_tokens(TOKENS)
    if gap:  # as files may have it that others wrote
        tokenizer = Tokenizer.from_str(tokenizer.to_str().replace('"id":8,', '"id":9,'))
    twin = dropping_marks(tokenizer)
    for text in ("<a>b ab< ba", "b a<a>bba", "a<\n>b"):
        read = tokenizer.encode(text)
        assert (twin.encode(text).ids, twin.encode(text).tokens) == (read.ids, read.tokens)
    assert twin.encode(f"<{MARK}a>").tokens == ["<", "a", ">"]


def test_text_without_control_tokens_is_left_alone() -> None:
    guard = Guard(["<|im_end|>"])
    for text in ("", "Hello, world!", "a <b> c", "1 < 2 | 3", "im_end"):
        assert guard.mark(text) == text


def test_every_string_of_nested_data_is_marked() -> None:
    guard = Guard(["<a>"])
    broken = f"<{MARK}a>"
    value = {"<a>": ["<a>", {"x": ("<a>", 1, None, True)}]}
    assert guard.mark_all(value) == {broken: [broken, {"x": [broken, 1, None, True]}]}


def test_what_cannot_be_guarded_is_refused() -> None:
    with pytest.raises(ValueError, match="only one character"):
        Guard(["<a>", "x"])
    deep: list[object] = []
    for _ in range(100):
        deep = [deep]
    with pytest.raises(ValueError, match="levels deep"):
        Guard([]).mark_all(deep)
