"""Tokenizers of GGUF files against llama.cpp's, on files that the tests write.

Text goes in as users write it: what looks like a control token is text to both. Where llama.cpp
differs from the tokenizers that it copies, those are the judges, in `test_tokenizers` and
`test_pre_tokenizers`:

- It brings no text into NFC, as Qwen's tokenizers do: it is given text that is.
- Its patterns for `gpt-4o` and `tekken` know no case beyond ASCII, and no marks.
- Its Unigram has no bytes to fall back to, and keeps a "▁" at the end that a user wrote; its BPE of
  SentencePiece has no normalisation, and removes no spaces.
- `tokenizers` normalises by graphemes: marks that combine across characters are its own.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from tests.core.llama_cpp import LlamaCpp
from tests.core.random_models import random_weights, write_gguf
from tests.regions.models.test_tokenizers import OPTIONS, STRINGS, strings, trained
from tests.vocabularies import published, vocabulary
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from skerry_core.config import LayerConfig, ModelConfig
from skerry_edge.text.control_tokens import Guard, dropping_marks
from skerry_regions.models import gguf_tokenizer
from skerry_regions.models.foreign.gguf_header import read_metadata
from skerry_regions.models.foreign.pre_tokenizers import NORMALIZED_TO_NFC, PRE_TOKENIZERS
from skerry_regions.models.foreign.sentencepiece_model import parse
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.sentencepiece_tokenizer import CONTROL, NORMAL

pytestmark = pytest.mark.slow

Metadata = dict[str, Any]


def written(path: Path, metadata: Metadata) -> Path:
    """A model of one small layer with such a tokenizer."""
    tokens = metadata["tokenizer.ggml.tokens"]
    config = ModelConfig(
        architecture="llama", layers=(LayerConfig(),), hidden_size=32, intermediate_size=32,
        num_heads=1, num_kv_heads=1, head_dim=32, vocab_size=len(tokens), max_context=64,
    )  # fmt: skip

    def add(writer: gguf.GGUFWriter) -> None:
        for key, value in metadata.items():
            match value:
                case str():
                    writer.add_string(key, value)
                case bool():
                    writer.add_bool(key, value)
                case int():
                    writer.add_uint32(key, value)
                case _:
                    if value:
                        writer.add_array(key, value)

    return write_gguf(path, config, random_weights(config), also=add, has_tokens=True)


def differing(
    path: Path, texts: Sequence[str], normalised: Callable[[str], str] = lambda text: text
) -> list[tuple[str, list[int], list[int]]]:
    """Texts that become other tokens than llama.cpp's, with both."""
    assert len(texts) >= 2000
    metadata = read_metadata(path)
    tokenizer, _ = gguf_tokenizer.convert(metadata)
    ours = dropping_marks(Tokenizer.from_str(json.dumps(tokenizer)))
    guard = Guard(gguf_tokenizer.control_tokens(metadata))
    peer = LlamaCpp(path)
    found = list[tuple[str, list[int], list[int]]]()
    for text in texts:
        own = ours.encode(guard.mark(text), add_special_tokens=False).ids
        if own != (theirs := peer.tokenize(normalised(text))):
            found.append((text, own, theirs))
    peer.close()
    return found


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def is_plain(text: str) -> bool:
    """Return whether llama.cpp's `gpt-4o` and `tekken` can cut a text as the originals do."""
    kinds = [unicodedata.category(each) for each in text if not each.isascii()]
    return not any(kind.startswith("M") or kind in ("Lu", "Ll", "Lt") for kind in kinds)


@pytest.fixture(scope="module")
def merged_across_words() -> Metadata:
    """A BPE trained on text that nothing has cut: a word cut otherwise has other tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=6000, initial_alphabet=letters, show_progress=False)
    tokenizer.train_from_iterator(STRINGS, trainer)
    return bpe_metadata(json.loads(tokenizer.to_str()))


def bpe_metadata(tokenizer: dict[str, Any]) -> Metadata:
    """What a GGUF file states of a `tokenizer.json`, its pre-tokenizer apart."""
    added = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    ids = tokenizer["model"]["vocab"] | added
    tokens = sorted(ids, key=ids.__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if each in added else NORMAL for each in tokens],
        "tokenizer.ggml.merges": [" ".join(each) for each in tokenizer["model"]["merges"]],
    }


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_text_is_cut_as_llama_cpp_cuts_it(
    tmp_path: Path, merged_across_words: Metadata, pre: str
) -> None:
    path = written(tmp_path / "m.gguf", {**merged_across_words, "tokenizer.ggml.pre": pre})
    if pre in ("gpt-4o", "tekken"):
        assert differing(path, [text for text in strings(8000) if is_plain(text)]) == []
    else:
        assert differing(path, STRINGS, nfc if pre in NORMALIZED_TO_NFC else str) == []


@pytest.mark.parametrize(("name", "pre"), [("llama3", "llama-bpe"), ("qwen", "qwen2")])
def test_published_vocabularies_are_read_as_llama_cpp_reads_them(
    tmp_path: Path, name: str, pre: str
) -> None:
    stated = json.loads(vocabulary(name).tokenizer.read_text(encoding="utf-8"))
    path = written(tmp_path / "m.gguf", {**bpe_metadata(stated), "tokenizer.ggml.pre": pre})
    assert differing(path, STRINGS, nfc if pre in NORMALIZED_TO_NFC else str) == []


@pytest.mark.model
def test_the_default_model_is_read_as_llama_cpp_reads_it(default_model: ModelFiles) -> None:
    (path,) = default_model.directory.glob("*.gguf")
    assert differing(path, STRINGS) == []


def sentencepiece_file(folder: Path, model: Path) -> Path:
    metadata = gguf_tokenizer.metadata_of(parse(model.read_bytes(), model.name))
    charsmap = metadata.pop("tokenizer.ggml.precompiled_charsmap")
    assert isinstance(charsmap, list)
    as_bytes = bytes(int(each) for each in charsmap)
    stated = {**metadata, "tokenizer.ggml.precompiled_charsmap": as_bytes}
    return written(folder / "m.gguf", {**stated, "tokenizer.ggml.pre": "default"})


@pytest.mark.parametrize("case", ["as Llama's", "without a space in front"])
def test_bpe_of_sentencepiece_is_read_as_llama_cpp_reads_it(tmp_path: Path, case: str) -> None:
    path = sentencepiece_file(tmp_path, trained(tmp_path, "bpe", **OPTIONS[case]))
    assert differing(path, STRINGS) == []


def test_mistrals_tokenizer_is_read_as_llama_cpp_reads_it(tmp_path: Path) -> None:
    assert differing(sentencepiece_file(tmp_path, published("mistral")), STRINGS) == []


@pytest.mark.parametrize("case", OPTIONS)
def test_unigram_is_read_as_llama_cpp_reads_it(tmp_path: Path, case: str) -> None:
    options = OPTIONS[case] | {"byte_fallback": False}
    path = sentencepiece_file(tmp_path, trained(tmp_path, "unigram", **options))
    texts = STRINGS
    if case == "extra spaces removed":
        texts = [text for text in texts if not text.rstrip(" ").endswith("▁")]
    elif case == "normalised":
        texts = [text for text in strings(3000) if not any(map(unicodedata.combining, text))]
    assert differing(path, texts) == []
