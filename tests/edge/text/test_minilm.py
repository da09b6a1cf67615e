"""all-MiniLM-L6-v2, from words to vectors, against NumPy in double precision."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pytest
from tests.core.random_encoders import KERNELS

from skerry_core.encoder import reference as reference_encoder
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
    assert text.encode(["Hello, WORLD!", "embeddings"], truncate=False) == [
        [101, 7592, 1010, 2088, 999, 102],
        [101, 7861, 8270, 4667, 2015, 102],
    ]


def test_a_long_text_keeps_its_last_special_token(text: EncoderText) -> None:
    (cut,) = text.encode(["word " * 1000], truncate=True)
    assert (len(cut), cut[0], cut[-1]) == (256, 101, 102)


def test_vectors_are_the_references(
    text: EncoderText, encoder: Encoder, embedding_model: ModelFiles
) -> None:
    file = BertFile.open(embedding_model.weights / "model.safetensors")
    ids = text.encode(TEXTS, truncate=True)
    for each, vector in zip(ids, encoder.encode(ids), strict=True):
        states = reference_encoder.encode(file, each)
        wanted = reference_encoder.pool(states, "mean", normalize=True)
        assert 1 - float(vector @ wanted) < 1e-6  # the bound that is promised is 1e-4
        np.testing.assert_allclose(vector, wanted, atol=2e-6)


def test_what_means_the_same_is_near(text: EncoderText, encoder: Encoder) -> None:
    cat, feline, court, _ = encoder.encode(text.encode(TEXTS, truncate=True))
    assert cat @ feline > 0.5
    assert cat @ court < 0.2
