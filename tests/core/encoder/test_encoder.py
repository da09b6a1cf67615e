"""The compiled encoder against its meaning in NumPy, against PyTorch, and against itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.encoder import reference_encoder
from tests.core.random_encoders import CONFIG, KERNELS, write_encoder
from tests.properties import examples

from skerry_core.config import ConfigError
from skerry_core.encoder import forward
from skerry_core.encoder.bert import BertFile
from skerry_core.encoder.encoder import Encoder, Pooling, chunks
from skerry_core.kernels.simd.memory import address
from skerry_core.kernels.simd.numba_math import kernel

POOLINGS: tuple[Pooling, ...] = get_args(Pooling)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Iterator[Encoder]:
    encoder = Encoder.open(folder, threads=2, cache_dir=KERNELS)
    yield encoder
    encoder.close()


def texts_of(lengths: list[int], seed: int = 5) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, CONFIG["vocab_size"], length).tolist() for length in lengths]


LENGTHS = [1, 2, 11, 12, 13, 15, 16, 17, 48, 70]  # around tiles and vectors, and the most


# --- kernels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("panels", [1, 2, 5])
@pytest.mark.parametrize("tokens", [1, 2, 5, 6, 12, 13, 31])
def test_matmul_is_a_chain_of_fused_sums(encoder: Encoder, tokens: int, panels: int) -> None:
    """Integers small enough that every order is exact: what is left to be wrong is the layout."""
    rng = np.random.default_rng(tokens * panels)
    depth = 37
    x = rng.integers(-9, 10, (tokens, depth)).astype(np.float32)
    weights = rng.integers(-9, 10, (panels, depth, 16)).astype(np.float32)
    bias = rng.integers(-9, 10, 16 * panels).astype(np.float32)
    out = np.zeros((tokens, 16 * panels), np.float32)
    forward.matmul(
        address(x), 4 * depth, tokens, depth, address(weights), address(bias), panels,
        address(out), 64 * panels,
    )  # fmt: skip
    np.testing.assert_array_equal(out, x @ weights.swapaxes(1, 2).reshape(-1, depth).T + bias)


@pytest.mark.parametrize("length", [1, 7, 16, 50])
def test_attention_is_softmax_over_all_tokens(length: int) -> None:
    head_dim, hidden = 32, 64
    qkv = np.random.default_rng(length).normal(size=(length, 3 * hidden)).astype(np.float32)
    padded = -(-length // 16) * 16
    context = np.zeros((length, hidden), np.float32)
    forward.attend(
        qkv, head_dim, np.zeros(padded + head_dim, np.float32),
        np.empty(padded * head_dim, np.float32), np.empty(padded * head_dim, np.float32),
        np.empty((forward.TILE, padded), np.float32), context,
    )  # fmt: skip
    np.testing.assert_allclose(context, reference_encoder.attend(qkv, head_dim), atol=2e-6)


@kernel
def run_gelu(x: Any, vectors: Any) -> None:
    forward.gelu(x, vectors)


@kernel
def run_layer_norm(x: Any, residual: Any, norm: Any, vectors: Any, out: Any) -> None:
    forward.add_layer_norm(x, residual, norm, norm + 64 * vectors, np.float32(1e-12), vectors, out)


def test_gelu_is_the_exact_one() -> None:
    x = np.concatenate([np.linspace(-40, 40, 4000), [0.0, -0.0, 1e-30, -1e-30, 1e30, -1e30]])
    x = np.resize(x.astype(np.float32), 4016)
    wanted = reference_encoder.gelu(x)
    run_gelu(address(x), len(x) // 16)
    np.testing.assert_allclose(x, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vectors", [1, 6])
def test_layer_norm_adds_then_normalizes(vectors: int) -> None:
    rng = np.random.default_rng(3)
    x, residual, *norm = rng.normal(size=(4, 16 * vectors)).astype(np.float32)
    out = np.empty_like(x)
    run_layer_norm(address(x), address(residual), address(np.stack(norm)), vectors, address(out))
    wanted = reference_encoder.layer_norm(x + residual, norm[0], norm[1], 1e-12)
    np.testing.assert_allclose(out, wanted, atol=3e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("normalize", [False, True])
def test_pooling(encoder: Encoder, pooling: Pooling, normalize: bool) -> None:
    (text,) = texts_of([17])
    (states,) = reference_encoder.states_of(encoder, [text])
    (vector,) = encoder.encode([text], pooling=pooling, normalize=normalize)
    wanted = reference_encoder.pool(states, pooling, normalize=normalize)
    np.testing.assert_array_equal(vector, wanted.astype(np.float32))


# --- the whole encoder ---------------------------------------------------------------------------


def assert_means_the_same(encoder: Encoder, folder: Path, texts: list[list[int]]) -> None:
    file = BertFile.open(folder / "model.safetensors")
    for text, states in zip(texts, reference_encoder.states_of(encoder, texts), strict=True):
        np.testing.assert_allclose(states, reference_encoder.encode(file, text), atol=1e-5)


def test_states_are_the_references(encoder: Encoder, folder: Path) -> None:
    assert_means_the_same(encoder, folder, texts_of(LENGTHS))


@pytest.mark.parametrize(
    ("model_type", "overrides"),
    [
        ("roberta", {"pad_token_id": 1, "max_position_embeddings": 40}),
        ("bert", {"hidden_size": 32, "num_attention_heads": 1, "intermediate_size": 16}),
    ],
)
def test_other_shapes_and_families(
    tmp_path: Path, model_type: str, overrides: dict[str, Any]
) -> None:
    folder = write_encoder(tmp_path, model_type=model_type, **overrides)
    encoder = Encoder.open(folder, threads=1, cache_dir=KERNELS)
    texts = texts_of([1, 20, min(38, encoder.max_tokens)])
    assert_means_the_same(encoder, folder, texts)
    encoder.close()


@settings(deadline=None, max_examples=examples(25))
@given(lengths=st.lists(st.integers(1, 70), min_size=1, max_size=24), seed=st.integers(0, 99))
def test_a_text_has_the_same_bits_in_every_batch(
    encoder: Encoder, lengths: list[int], seed: int
) -> None:
    texts = texts_of(lengths, seed)
    together = encoder.encode(texts)
    for text, vector in zip(texts, together, strict=True):
        np.testing.assert_array_equal(encoder.encode([text])[0], vector)


def test_thread_count_changes_no_bit(encoder: Encoder, folder: Path) -> None:
    texts = texts_of(LENGTHS * 4)
    for threads in (1, 3):
        other = Encoder.open(folder, threads=threads, cache_dir=KERNELS)
        np.testing.assert_array_equal(other.encode(texts), encoder.encode(texts))
        other.close()


def test_the_same_as_pytorch(encoder: Encoder, folder: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    for text in texts_of(LENGTHS):
        states = torch_states(torch, weights, torch.tensor(text))
        wanted = torch.nn.functional.normalize(states.mean(dim=0), dim=0).numpy()
        (vector,) = encoder.encode([text])
        assert 1 - float(vector @ wanted) < 1e-6
        np.testing.assert_allclose(vector, wanted, atol=1e-5)


def torch_states(torch: Any, weights: dict[str, Any], text: Any) -> Any:
    """The last layer's states of one text, by PyTorch's own operations."""
    functional = torch.nn.functional
    hidden, heads = CONFIG["hidden_size"], CONFIG["num_attention_heads"]

    def dense(name: str, x: Any) -> Any:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(name: str, x: Any) -> Any:
        scale, shift = weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"]
        return functional.layer_norm(x, (hidden,), scale, shift, CONFIG["layer_norm_eps"])

    def split(x: Any) -> Any:
        return x.view(1, len(text), heads, hidden // heads).transpose(1, 2)

    tables = [weights[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position")]
    types = weights["embeddings.token_type_embeddings.weight"]
    x = norm("embeddings", tables[0][text] + tables[1][: len(text)] + types[0])
    for index in range(CONFIG["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        q, k, v = (
            split(dense(f"{layer}.attention.self.{kind}", x)) for kind in ("query", "key", "value")
        )
        context = functional.scaled_dot_product_attention(q, k, v)
        context = context.transpose(1, 2).reshape(len(text), hidden)
        out = dense(f"{layer}.attention.output.dense", context)
        x = norm(f"{layer}.attention.output", out + x)
        inner = functional.gelu(dense(f"{layer}.intermediate.dense", x))
        x = norm(f"{layer}.output", dense(f"{layer}.output.dense", inner) + x)
    return x


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ([], r"a text of 0 tokens; 1 to 70 fit"),
        ([1] * 71, r"a text of 71 tokens; 1 to 70 fit"),
        ([101], r"token ids must be in \[0, 101\)"),
        ([-1], r"token ids must be in \[0, 101\)"),
    ],
)
def test_what_does_not_fit_is_refused(encoder: Encoder, text: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        encoder.encode([[1], text])


def test_no_texts_are_no_vectors(encoder: Encoder) -> None:
    assert encoder.encode([]).shape == (0, CONFIG["hidden_size"])


def test_a_closed_encoder_says_so(folder: Path) -> None:
    encoder = Encoder.open(folder, threads=1, cache_dir=KERNELS)
    encoder.close()
    encoder.close()
    with pytest.raises(RuntimeError, match="closed"):
        encoder.encode([[1]])


def test_threads_are_bounded(folder: Path) -> None:
    with pytest.raises(ConfigError, match="threads must be 1 to 256, got 0"):
        Encoder.open(folder, threads=0, cache_dir=KERNELS)


@given(
    lengths=st.lists(st.integers(1, 600), max_size=40),
    target=st.integers(1, 300),
)
def test_chunks_hold_every_text_once(lengths: list[int], target: int) -> None:
    made = chunks(lengths, target)
    assert sorted(index for chunk in made for index in chunk) == list(range(len(lengths)))
    for chunk in made:
        total = sum(lengths[index] for index in chunk)
        assert total <= target or len(chunk) == 1
