"""Words that a GGUF's pre-tokenizer cuts, against published patterns in another engine."""

from __future__ import annotations

import json
import unicodedata

import pytest
import regex
from tests.regions.models.test_tokenizers import strings
from tokenizers import Tokenizer
from tokenizers.models import BPE

from skerry_regions.models.foreign.pre_tokenizers import PRE_TOKENIZERS
from skerry_regions.models.gguf_tokenizer import stop_texts

# tiktoken's `openai_public.py`, MIT; the first as released for GPT-4, the second for GPT-4o.
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
TEXT = "Don't stop: XMLHttpRequest of 2024, she'LL//  go\n\n"
PIECES = {
    "gpt-4o": "Don't| stop|:| XMLHttp|Request| of| |202|4|,| she'LL|//| | go|\n\n",
    "tekken": "Don|'t| stop|:| XMLHttp|Request| of| |2|0|2|4|,| she|'LL|//| | go|\n\n",
    "dbrx": "Don|'t| stop|:| XMLHttpRequest| of| |202|4|,| she|'LL|//| | go|\n\n",
}


def words(name: str, text: str) -> list[str]:
    described = json.loads(Tokenizer(BPE()).to_str()) | {"pre_tokenizer": PRE_TOKENIZERS[name]}
    cutter = Tokenizer.from_str(json.dumps(described)).pre_tokenizer
    assert cutter is not None
    return [text[start:end] for _, (start, end) in cutter.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", PIECES)
def test_a_sentence_is_cut_as_its_tokenizer_cuts_it(name: str) -> None:
    assert words(name, TEXT) == PIECES[name].split("|")


@pytest.mark.parametrize(("name", "pattern"), [("dbrx", CL100K), ("gpt-4o", O200K)])
def test_words_are_those_of_the_published_pattern(name: str, pattern: str) -> None:
    published = regex.compile(pattern)
    # What no character is yet may be one in another engine's version of Unicode.
    known = ["".join(c for c in text if unicodedata.category(c) != "Cn") for text in strings()]
    differing = [text for text in known if words(name, text) != published.findall(text)]
    assert not differing


def test_a_message_of_harmony_is_not_the_end_of_a_turn() -> None:
    harmony = ["<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|endoftext|>"]
    assert stop_texts(harmony) == {"<|return|>", "<|call|>", "<|endoftext|>"}
    assert stop_texts(["<|user|>", "<|end|>", "<|endoftext|>"]) == {"<|end|>", "<|endoftext|>"}
