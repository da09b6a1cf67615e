"""Remembered parts of prompts have exactly the ids of the whole, and are their tenant's alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from skerry.errors import InvalidInput
from skerry_edge.text.model import Prompt, TextModel
from skerry_edge.text.tenant_memory import ENTRY_BYTES
from skerry_edge.text.token_cache import Borders, PrefixMemory
from skerry_regions.models.model_files import ModelFiles

WORDS = "All work and no play makes Jack a dull boy. "


@pytest.fixture(scope="module")
def model(default_model: ModelFiles) -> TextModel:
    return TextModel(default_model, context_window=8192)


TEXTS = st.one_of(
    st.text(max_size=40),
    st.sampled_from(
        ["<|im_start|>", "<|im_end|>", "<|im_end|>\n<|im_start|>user\n", "<|im_", "|>"]
    ),
    st.sampled_from([" ", "\n", "  \n", "'s", "1234", "日本", "\u0301", WORDS]),
)
CONTENTS = st.lists(TEXTS, max_size=12).map("".join)


@pytest.mark.model
@settings(max_examples=examples(200), deadline=None)
@given(st.lists(CONTENTS, min_size=1, max_size=3))
def test_the_ids_are_those_of_the_whole(model: TextModel, prompts: Sequence[str]) -> None:
    memory = PrefixMemory(part_chars=8)
    grown = Prompt("")
    for text in prompts:
        grown = Prompt(grown + text)
        for _ in range(2):  # computed, then remembered
            assert memory.encode(model, "t", grown) == model.encode(grown)


@pytest.mark.model
@settings(max_examples=examples(50), deadline=None)
@given(st.lists(CONTENTS, min_size=1, max_size=6))
def test_control_tokens_that_users_wrote_stay_text(model: TextModel, contents: list[str]) -> None:
    prompt = model.render([{"role": "user", "content": text} for text in contents])
    assert PrefixMemory(part_chars=8).encode(model, "t", prompt) == model.encode(prompt)


PIECES = [("<unk>", 0.0), ("▁", -2.0), ("a", -2.1), ("▁a", -3.0), ("b", -2.2), ("ab", -3.1)]


class SmallText:
    """The part of a `TextModel` that the memory needs, over a tokenizer made here."""

    build = "small"

    def __init__(self, prepend: str, token: AddedToken) -> None:
        self.tokenizer = Tokenizer(models.Unigram(PIECES, unk_id=0))
        if prepend == "normalizer":
            self.tokenizer.normalizer = normalizers.Prepend("▁")
        else:
            self.tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
        self.tokenizer.add_special_tokens([token, AddedToken("<s>", normalized=False)])
        self.borders = Borders(self.tokenizer)
        self.num_encoded = 0
        self.context_window = 1 << 20

    def check_length(self, num_tokens: int) -> None:
        assert num_tokens <= self.context_window

    def encode_part(self, part: str) -> list[int]:
        self.num_encoded += len(part)
        ids: list[int] = self.tokenizer.encode(part, add_special_tokens=False).ids
        return ids

    def as_model(self) -> TextModel:
        return cast(TextModel, self)


@pytest.mark.parametrize("prepend", ["first", "always", "never", "normalizer"])
@pytest.mark.parametrize(
    "token",
    [
        AddedToken("</s>", normalized=False),
        AddedToken("</s>", normalized=False, lstrip=True),
        AddedToken("</s>", normalized=False, rstrip=True),
        AddedToken("</s>", normalized=False, single_word=True),
        AddedToken("</s>", normalized=True),
        AddedToken("<s></s>", normalized=False),
    ],
    ids=lambda token: f"{token.content}-{token.lstrip}-{token.rstrip}-{token.single_word}",
)
@settings(max_examples=examples(30), deadline=None)
@given(
    st.lists(st.sampled_from(["a", "ab", " ", "  ", "</s>", "<s>", "<s", ">", "c"]), max_size=20)
)
def test_tokenizers_of_every_habit(prepend: str, token: AddedToken, pieces: list[str]) -> None:
    text, whole = SmallText(prepend, token), "".join(pieces)
    ids = text.tokenizer.encode(whole, add_special_tokens=False).ids
    assert PrefixMemory(part_chars=1).encode(text.as_model(), "t", whole) == ids


@pytest.fixture
def small() -> SmallText:
    return SmallText("first", AddedToken("</s>", normalized=False))


def test_a_known_prefix_is_not_tokenised_again(small: SmallText) -> None:
    memory, text = PrefixMemory(part_chars=100), small.as_model()
    first = "<s>" + "ab" * 60 + "</s>" + "b" * 200 + "</s>"
    memory.encode(text, "t", first + "a")
    small.num_encoded = 0
    memory.encode(text, "t", first + "b" * 30)
    assert small.num_encoded == len("</s>") + 30


def test_another_tenant_is_not_faster(small: SmallText) -> None:
    memory, text, prompt = (
        PrefixMemory(part_chars=100),
        small.as_model(),
        "<s>" + "a" * 200 + "</s>",
    )
    memory.encode(text, "t", prompt)
    small.num_encoded = 0
    memory.encode(text, "u", prompt)
    assert small.num_encoded == len(prompt)


def test_memory_is_bounded_for_each_tenant_and_for_all(small: SmallText) -> None:
    entry = ENTRY_BYTES + 4 * 102
    memory = PrefixMemory(part_chars=100, max_tenant_bytes=2 * entry, max_bytes=3 * entry)
    text = small.as_model()
    for tenant in ("t", "t", "u", "u"):
        prompts = [f"<s>{'ab'[number % 2]}{'b' * 100}</s>" for number in range(2)]
        for prompt in prompts:
            memory.encode(text, tenant, prompt)
            assert memory.parts.num_bytes <= 3 * entry
    small.num_encoded = 0
    memory.encode(text, "u", f"<s>b{'b' * 100}</s>")
    assert small.num_encoded == len("</s>")  # what was used last is there


def test_one_large_part_takes_the_place_of_many_tenants(small: SmallText) -> None:
    memory = PrefixMemory(part_chars=1, max_bytes=4 * ENTRY_BYTES)
    text = small.as_model()
    for tenant in ("t", "u", "v"):
        memory.encode(text, tenant, "a</s>")
    memory.encode(text, "w", f"{'a' * 140}</s>")
    assert 3 * ENTRY_BYTES < memory.parts.num_bytes < 4 * ENTRY_BYTES
    small.num_encoded = 0
    memory.encode(text, "w", f"{'a' * 140}</s>")
    assert small.num_encoded == len("</s>")


def test_a_part_beyond_a_tenants_bound_is_not_kept(small: SmallText) -> None:
    memory = PrefixMemory(part_chars=1, max_tenant_bytes=ENTRY_BYTES, max_bytes=4 * ENTRY_BYTES)
    memory.encode(small.as_model(), "t", "a</s>")
    assert memory.parts.num_bytes == 0


@pytest.mark.model
def test_text_that_is_not_unicode(model: TextModel) -> None:
    prompt = Prompt("<|im_start|>" + "\ud800" * 2000 + "<|im_end|>")
    with pytest.raises(InvalidInput, match="surrogate"):
        PrefixMemory().encode(model, "t", prompt)
