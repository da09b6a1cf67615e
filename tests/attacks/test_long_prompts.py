"""Prompts far beyond the context: counted on arrival, given up early, tokenised without the GIL."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.errors import PromptTooLong
from skerry.wire import Message
from skerry_edge.generation.encoding import within_lengths
from skerry_edge.limits import Limits
from skerry_edge.text import model as text_model
from skerry_edge.text.desk import Desk
from skerry_edge.text.encoder import GROUP_CHARS, EncoderText
from skerry_edge.text.model import CUT_TOKENS, PIECE_CHARS, Prompt, TextModel
from skerry_edge.text.prompts import chat_prompt, text_prompt
from skerry_regions.models.catalog import Catalog, ModelSpec
from skerry_regions.models.model_files import ModelFiles

MODEL = "@cf/huggingfacetb/smollm2-135m-instruct"
WORDS = "The quick brown fox jumps over the lazy dog, and runs away. "
CONTEXT = 8192


@pytest.fixture(scope="module")
def model(default_model: ModelFiles) -> TextModel:
    return TextModel(default_model, context_window=CONTEXT)


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return Catalog.load().resolve(MODEL)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The characters of each piece that is tokenised."""
    sizes: list[int] = []
    whole = text_model._ids
    monkeypatch.setattr(
        text_model,
        "_ids",
        lambda tokenizer, text: sizes.append(len(text)) or whole(tokenizer, text),
    )
    return sizes


@pytest.mark.model
def test_tokenising_stops_soon_after_the_context_is_full(
    model: TextModel, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, desk = counted(monkeypatch), Desk()
    prompt = (WORDS * 5000)[: CONTEXT * 32 - 100]

    async def ask() -> None:
        await chat_prompt(model, spec, [Message("user", prompt)], Limits(), desk, "t")

    with pytest.raises(PromptTooLong, match=f"more than {CONTEXT} tokens"):
        asyncio.run(ask())
    desk.close()
    assert sum(sizes) <= 4 * PIECE_CHARS  # of 262,000 characters


@pytest.mark.model
def test_what_fits_is_tokenised_whole_whatever_its_length_in_characters(model: TextModel) -> None:
    text = " " * (CONTEXT * 8)  # tokens of many spaces each
    assert model.encode(Prompt(text)) == model._tokenizer.encode(text, add_special_tokens=False).ids


PIECES = st.sampled_from(
    [" ", "  ", "\n", "a", "aa", "ab", "1", "日", "\u0301", "'s", "_", "word", "Word ", "{}", "==="]
)


@pytest.mark.model
@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=30), st.integers(1, 40), st.integers(0, 500))
def test_a_text_cut_anywhere_has_few_tokens_more(
    model: TextModel, pieces: list[str], times: int, place: int
) -> None:
    text = "".join(pieces) * times
    place = place % (len(text) + 1)
    whole, *parts = (len(model.encode(Prompt(each))) for each in (text, text[:place], text[place:]))
    assert sum(parts) <= whole + CUT_TOKENS // 4


@pytest.mark.model
def test_others_run_while_a_long_prompt_is_tokenised(model: TextModel, spec: ModelSpec) -> None:
    """The GIL is free: another thread does nearly as much in that time as it does alone."""
    text, done = "a" * (CONTEXT * 16), threading.Event()
    turns = 0

    def count() -> None:
        nonlocal turns
        while not done.is_set():
            turns += 1
            time.sleep(0)

    other = threading.Thread(target=count)
    other.start()
    before = turns
    model._tokenizer.encode_batch_fast([text])
    during = turns - before
    done.set()
    other.join()
    assert during > 10  # not one, as while the GIL was held


@pytest.mark.model
def test_one_tenants_pile_of_prompts_is_not_before_anothers(
    model: TextModel, spec: ModelSpec
) -> None:
    desk, prompt = Desk(), WORDS * 400

    async def main() -> int:
        pile = [
            asyncio.create_task(text_prompt(model, spec, prompt, Limits(), desk, "loud", raw=True))
            for _ in range(50)
        ]
        await asyncio.sleep(0)
        await text_prompt(model, spec, prompt, Limits(), desk, "quiet", raw=True)
        first = sum(each.done() for each in pile)
        await asyncio.gather(*pile)
        return first

    assert asyncio.run(main()) <= 6
    desk.close()


# --- texts to be embedded or ranked --------------------------------------------------------------


class Counting:
    """A tokenizer that counts the characters that it is given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.chars = 0

    def encode_batch(self, texts: list[str], **options: Any) -> Any:
        self.chars += sum(map(len, texts))
        return self._tokenizer.encode_batch(texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.fixture
def encoder(embedding_model: ModelFiles) -> tuple[EncoderText, Counting]:
    text = EncoderText(embedding_model, max_tokens=512)
    text._whole = counting = Counting(text._whole)  # type: ignore[assignment]
    return text, counting


@pytest.mark.model
def test_a_query_is_tokenised_once_for_all_its_contexts(
    encoder: tuple[EncoderText, Counting],
) -> None:
    text, counting = encoder
    query = "what " + " " * 15_000
    assert len(list(text.encode_pairs(query, ["a"] * 1000, truncate=True))) == 1000
    assert counting.chars == len(query) + 1000


@pytest.mark.model
def test_what_follows_a_text_that_is_too_long_is_not_tokenised(
    encoder: tuple[EncoderText, Counting],
) -> None:
    text, counting = encoder
    texts = [WORDS * 260] * 500  # 16,000 characters each
    spec = Catalog.load().resolve("@cf/sentence-transformers/all-minilm-l6-v2")
    with pytest.raises(PromptTooLong):
        within_lengths(text.encode(texts, truncate=False), spec, text, ["text"] * 500)
    assert counting.chars <= GROUP_CHARS + len(texts[0])
