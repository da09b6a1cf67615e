"""Decoders that embed: against `transformers`, and against themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.core.encoder import reference_encoder
from tests.core.random_embedders import EMBEDDERS, WORDS, pooled, write_embedder
from tests.core.random_encoders import KERNELS
from tests.core.random_models import alike

from skerry_core.config import ConfigError, ModelConfig
from skerry_core.encoder import decoder_network
from skerry_core.encoder.decoder_network import KNOWN, DecoderNetwork
from skerry_core.encoder.encoder import Encoder, Pooling
from skerry_core.encoder.opening import check_config
from skerry_core.encoder.projections import open_projections
from skerry_core.models.tensor_names import expected_shapes
from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.tensors import WeightsError
from skerry_regions.models import local_model

POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "max": "max", "lasttoken": "last"}
LENGTHS = (1, 2, 11, 13, 16, 17, 40, 150, 256)  # around tiles and vectors, and the most


def texts_of(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    rng = np.random.default_rng(7)
    return [rng.integers(0, len(WORDS), length).tolist() for length in lengths]


@dataclass
class Saved:
    name: str
    folder: Path
    model: Any
    encoder: Encoder


@pytest.fixture(scope="module", params=EMBEDDERS)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("embedder")
    model = write_embedder(folder, request.param)
    encoder = Encoder.open(folder, threads=2, cache_dir=KERNELS)
    yield Saved(request.param, folder, model, encoder)
    encoder.close()


def states_of(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([ids])).last_hidden_state[0]


def test_states_are_those_of_transformers(saved: Saved) -> None:
    for ids, states in zip(
        texts_of(), reference_encoder.states_of(saved.encoder, texts_of()), strict=True
    ):
        theirs = states_of(saved.model, ids).numpy()
        np.testing.assert_allclose(states, theirs, atol=3e-5 * np.abs(theirs).max())


def test_vectors_are_what_its_modules_make_of_them(saved: Saved) -> None:
    pooling = POOLINGS[EMBEDDERS[saved.name].pooling]
    for ids, vector in zip(
        texts_of(), saved.encoder.encode(texts_of(), pooling=pooling), strict=True
    ):
        theirs = pooled(saved.folder, saved.name, states_of(saved.model, ids))
        np.testing.assert_allclose(vector, theirs.numpy(), atol=1e-5)
        assert vector.shape == (saved.encoder.width,)


def test_bits_are_the_same_alone_and_in_any_batch(saved: Saved) -> None:
    texts = texts_of()
    alone = np.concatenate([saved.encoder.encode([ids]) for ids in texts])
    np.testing.assert_array_equal(saved.encoder.encode(texts * 2), np.tile(alone, (2, 1)))
    other = Encoder.open(saved.folder, threads=1, cache_dir=KERNELS)
    np.testing.assert_array_equal(other.encode(texts[::-1]), alone[::-1])
    other.close()


# --- every feature matters -----------------------------------------------------------------------

WITHOUT: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    "biases of q, k and v": lambda c: replace(c, attention_bias=False),
    "norms of the heads of q and k": lambda c: replace(c, qk_norm=None),
    "norms after each branch": lambda c: replace(c, norms_after=False),
    "GELU": lambda c: replace(c, activation="silu"),
    "scaled rotary embeddings": lambda c: replace(
        c,
        layers=tuple(
            replace(each, rope=each.rope and replace(each.rope, multipliers=(), amplitude=1.0))
            for each in c.layers
        ),
    ),
    "rotary embeddings that differ by layer": lambda c: alike(c, rope=c.ropes[0]),
    "a sliding window": lambda c: alike(c, window=None),
    "sliding windows that differ by layer": lambda c: alike(c, window=20),
    "an attention scale of its own": lambda c: replace(c, attention_scale=None),
    "scaled embeddings": lambda c: replace(c, embedding_scale=1.0),
    "attention in both directions": lambda c: replace(c, is_bidirectional=False),
}


def test_every_feature_matters(saved: Saved) -> None:
    ids = texts_of((150,))[0]
    theirs = states_of(saved.model, ids).numpy()
    with WeightFile.open(saved.folder, is_headless=True) as file:
        config, tensors = file.config, dict(file.tensors)
    assert config.features
    for feature in config.features:
        changed = WITHOUT[feature](config)
        kept = {name: each for name, each in tensors.items() if name in expected_shapes(changed)}
        encoder = Encoder(DecoderNetwork(changed, kept), threads=1, cache_dir=KERNELS)
        (states,) = reference_encoder.states_of(encoder, [ids])
        encoder.close()
        assert np.abs(states - theirs).max() > 1e-3 * np.abs(theirs).max(), feature


# --- what is refused -----------------------------------------------------------------------------

PLAIN = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 101, "max_position_embeddings": 64, "head_dim": 16,
}  # fmt: skip


def test_the_list_of_those_that_may_embed_is_told_once() -> None:
    assert decoder_network.EMBEDDERS == local_model.EMBEDDERS
    assert set(WITHOUT) == KNOWN


@pytest.mark.parametrize(
    ("config", "error", "reason"),
    [
        ({"model_type": "llama", "hidden_size": 72}, WeightsError, "must be multiples of 16"),
        ({"model_type": "gemma2"}, WeightsError, "Invalid enum value 'gemma2'"),
        ({"model_type": "qwen3", "attention_bias": True}, WeightsError, "attention_bias"),
    ],
)
def test_what_cannot_embed_is_refused(
    config: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        check_config(PLAIN | config, "config.json")


def test_a_runner_refuses_a_model_that_looks_both_ways(tmp_path: Path) -> None:
    write_embedder(tmp_path, "EmbeddingGemma")
    with WeightFile.open(tmp_path) as file, pytest.raises(ConfigError, match="both directions"):
        file.config.check_features("numba")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"activation_function": "torch.nn.modules.activation.ReLU"}, "ReLU' is not supported"),
        ({"in_features": 48}, "in_features is 48, vectors have 64"),
        ({"out_features": 40}, "multiple of 16"),
        ({"bias": True}, "'linear.bias' is missing"),
    ],
)
def test_a_dense_layer_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    write_embedder(tmp_path, "EmbeddingGemma")
    path = tmp_path / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(WeightsError, match=reason):
        open_projections(tmp_path, 64)


def test_a_head_for_logits_is_left_out(tmp_path: Path) -> None:
    """Qwen3-Embedding's larger sizes are published with one, and with names that begin so."""
    write_embedder(tmp_path / "base", "Qwen3-Embedding")
    folder = tmp_path / "whole"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_bytes((tmp_path / "base" / name).read_bytes())
    weights = load_file(tmp_path / "base" / "model.safetensors")
    named = {f"model.{name}": each for name, each in weights.items()}
    named["lm_head.weight"] = np.zeros((len(WORDS), 64), np.float32)
    save_file(named, folder / "model.safetensors")
    vectors = []
    for path in (tmp_path / "base", folder):
        encoder = Encoder.open(path, threads=1, cache_dir=KERNELS)
        vectors.append(encoder.encode(texts_of(), pooling="last"))
        encoder.close()
    np.testing.assert_array_equal(*vectors)
