"""all-MiniLM-L6-v2, from words to vectors, against NumPy in double precision."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest
from tests.core.encoder import reference_encoder
from tests.core.random_encoders import KERNELS
from tokenizers import Tokenizer

from skerry_core.encoder.bert import BertFile
from skerry_core.encoder.encoder import Encoder
from skerry_edge.text.encoder import EncoderText
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

TEXTS = [
    "The cat sat on the mat.",
    "A feline rested on a rug.",
    "Das Finanzgericht entscheidet über Steuerbescheide.",
    "naïve café — 東京 🙂 [SEP] " + "word " * 300,
]


@pytest.fixture(scope="module")
def text(embedding_model: ModelFiles) -> EncoderText:
    return EncoderText(embedding_model, max_tokens=256)


@pytest.fixture(scope="module")
def encoder(embedding_model: ModelFiles) -> Generator[Encoder]:
    encoder = Encoder.open(embedding_model.weights, threads=2, cache_dir=KERNELS)
    yield encoder
    encoder.close()


def test_words_are_the_models_own_pieces(text: EncoderText) -> None:
    """Ids as BERT's uncased vocabulary has them; the file's own padding to 128 is left out."""
    assert list(text.encode(["Hello, WORLD!", "embeddings"], truncate=False)) == [
        [101, 7592, 1010, 2088, 999, 102],
        [101, 7861, 8270, 4667, 2015, 102],
    ]


def test_a_long_text_keeps_its_last_special_token(text: EncoderText) -> None:
    (cut,) = text.encode(["word " * 1000], truncate=True)
    assert (len(cut), cut[0], cut[-1]) == (256, 101, 102)


@pytest.mark.parametrize("truncate", [True, False])
def test_pairs_are_those_of_the_tokenizer(
    text: EncoderText, embedding_model: ModelFiles, truncate: bool
) -> None:
    """Which tokenises the first text once more for each of the others."""
    tokenizer = Tokenizer.from_file(str(embedding_model.tokenizer))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if truncate:
        tokenizer.enable_truncation(256, strategy="only_second")
    others = [*(each.replace("[SEP]", "-") for each in TEXTS), *("word " * n for n in range(300))]
    wanted = tokenizer.encode_batch([("what is it?", other) for other in others])
    found = list(text.encode_pairs("what is it?", others, truncate=truncate))
    assert [ids for ids, _ in found] == [each.ids for each in wanted]
    assert [second for _, second in found] == [
        each.type_ids.index(1) if 1 in each.type_ids else len(each.ids) for each in wanted
    ]


def test_vectors_are_the_references(
    text: EncoderText, encoder: Encoder, embedding_model: ModelFiles
) -> None:
    file = BertFile.open(embedding_model.weights / "model.safetensors")
    ids = list(text.encode(TEXTS, truncate=True))
    for each, vector in zip(ids, encoder.encode(ids), strict=True):
        states = reference_encoder.encode(file, each)
        wanted = reference_encoder.pool(states, "mean", normalize=True)
        assert 1 - float(vector @ wanted) < 1e-6  # the bound that is promised is 1e-4
        np.testing.assert_allclose(vector, wanted, atol=2e-6)


def test_what_means_the_same_is_near(text: EncoderText, encoder: Encoder) -> None:
    cat, feline, court, _ = encoder.encode(list(text.encode(TEXTS, truncate=True)))
    assert cat @ feline > 0.5
    assert cat @ court < 0.2
