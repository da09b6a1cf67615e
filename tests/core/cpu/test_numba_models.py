"""The CPU runner on every family, size and format: against transformers, and against fp32 NumPy.

Models are small and random, and written by the test as hubs and converters write them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.core.cpu.numba_steps import Float32, prefill, table_for
from tests.core.cpu.test_numba_exactness import CACHE
from tests.core.random_models import (
    LLAMA3_JSON,
    alike,
    mixed,
    quantize_matrices,
    random_weights,
    rope_of,
    scaled_rope,
    write_gguf,
    write_safetensors,
)
from tests.core.reference_model import ReferenceModel, kl_divergence
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from skerry_core.config import ConfigError, LayerConfig, ModelConfig, RopeConfig
from skerry_core.models.weight_file import WeightFile
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_core.weights.gguf import GGUF_FORMATS
from skerry_core.weights.tensors import WeightsError

VOCAB = 131
TOKENS = np.random.default_rng(7).integers(0, VOCAB, 150).tolist()
EXACT = 5e-3  # of logits of order 1, where weights and activations are floats: KV is float16
ROUNDED = 0.01  # nats of KL divergence, where activations have 8 bits

BASE = ModelConfig(
    architecture="llama",
    layers=(LayerConfig(),) * 2,
    hidden_size=128,
    intermediate_size=160,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    vocab_size=VOCAB,
    max_context=512,
)
FAMILIES = {
    "llama": BASE,
    "llama 3, scaled rope, untied": alike(
        replace(BASE, tied_embeddings=False, head_dim=96),
        rope=scaled_rope(LLAMA3_JSON, 96, theta=500_000.0),
    ),
    "llama, one KV head for all, another eps": replace(
        BASE, num_heads=8, num_kv_heads=1, rms_norm_eps=0.01
    ),
    "qwen2": replace(
        alike(BASE, rope=RopeConfig(theta=1e6)),
        architecture="qwen2",
        attention_bias=True,
        num_heads=6,
        head_dim=128,
    ),
    "qwen3": replace(BASE, architecture="qwen3", qk_norm="head", head_dim=80, rms_norm_eps=1e-6),
    "mistral": replace(BASE, architecture="mistral", num_kv_heads=4, tied_embeddings=False),
    "mistral with a window": alike(replace(BASE, architecture="mistral"), window=70),
}


def logits_of(weights: Path, **options: Any) -> Float32:
    """Of all tokens, by a runner of its own, in chunks of odd sizes."""
    runner = NumbaRunner.open(
        weights, num_blocks=4, max_samples=512, threads=2, cache_dir=CACHE, **options
    )
    logits = prefill(runner, TOKENS, table_for(len(TOKENS), first=0), chunk=67)
    runner.close()
    return logits


def by_transformers(folder: Path) -> Float32:
    return logits_of_peer(
        AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
    )


def gguf_by_transformers(path: Path, head_dim: int) -> Float32:
    """As it reads sizes, names, order of rows and values out of a GGUF file; but for `head_dim`."""
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    config.head_dim = head_dim
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    read = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    told = model.load_state_dict(read, strict=False)
    assert set(told.missing_keys) <= {"lm_head.weight"}, told  # tied
    assert not told.unexpected_keys, told
    return logits_of_peer(model)


def logits_of_peer(model: Any) -> Float32:
    with torch.inference_mode():
        logits: Float32 = model(torch.tensor([TOKENS])).logits[0].numpy()
    return logits


def mean_kl(expected: Float32, logits: Float32) -> float:
    return float(kl_divergence(expected, logits).mean())


# --- families ------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_logits_are_those_of_transformers(tmp_path: Path, config: ModelConfig) -> None:
    path = write_safetensors(tmp_path, config, random_weights(config, seed=1))
    expected = by_transformers(tmp_path)
    np.testing.assert_allclose(logits_of(path, floats="keep"), expected, rtol=0, atol=EXACT)
    assert mean_kl(expected, logits_of(path)) < ROUNDED  # as Q8_0


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_gguf_of_every_family(tmp_path: Path, config: ModelConfig) -> None:
    """Rotary pairs lie interleaved in files of Llama and Mistral, and in halves in Qwen's."""
    config = alike(config, rope=RopeConfig(theta=rope_of(config).theta))
    path = write_gguf(tmp_path / "m.gguf", config, random_weights(config), mixed_eight)
    expected = fp32(path)
    assert mean_kl(expected, logits_of(path)) < ROUNDED
    if config.layers[0].window is None:  # transformers knows a window of no GGUF file
        told = gguf_by_transformers(path, config.head_dim)
        np.testing.assert_allclose(told, expected, rtol=0, atol=1e-4)


def mixed_eight(name: str) -> str:
    return {"ffn_down": "F16", "attn_v": "F32"}.get(
        name.split(".")[-2], quantize_matrices("Q8_0")(name)
    )


def fp32(path: Path) -> Float32:
    with WeightFile.open(path) as file:
        return ReferenceModel(file).logits(TOKENS)


# --- formats -------------------------------------------------------------------------------------

WIDE = replace(BASE, hidden_size=256, intermediate_size=512, tied_embeddings=False)


@pytest.mark.parametrize("format_", [*GGUF_FORMATS, "Q4_K_M"])
def test_every_format_of_gguf(tmp_path: Path, format_: str) -> None:
    """Against fp32 over what the file's own values are."""
    chosen: Callable[[str], str] = mixed if format_ == "Q4_K_M" else quantize_matrices(format_)
    path = write_gguf(tmp_path / "m.gguf", WIDE, random_weights(WIDE, seed=2), chosen)
    expected, logits = fp32(path), logits_of(path)
    assert mean_kl(expected, logits) < ROUNDED
    if format_.endswith(("F16", "F32")):
        np.testing.assert_allclose(logits, expected, rtol=0, atol=EXACT)


def test_a_tied_head_in_k_format(tmp_path: Path) -> None:
    config = replace(WIDE, tied_embeddings=True)
    path = write_gguf(tmp_path / "m.gguf", config, random_weights(config), mixed)
    assert mean_kl(fp32(path), logits_of(path)) < ROUNDED


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_floats_of_safetensors_become_q8_0(tmp_path: Path, dtype: str) -> None:
    weights = random_weights(WIDE, seed=3)
    path = write_safetensors(tmp_path, WIDE, weights)
    expected = fp32(path)
    if dtype == "bfloat16":
        torch_save(path, torch.bfloat16)
    elif dtype == "float16":
        torch_save(path, torch.float16)
    runner = NumbaRunner.open(path, num_blocks=4, max_samples=512, cache_dir=CACHE)
    assert runner._packed.all_formats == ("Q8_0",)
    logits = prefill(runner, TOKENS, table_for(len(TOKENS), first=0), 150)
    runner.close()
    assert mean_kl(expected, logits) < ROUNDED


def torch_save(path: Path, dtype: torch.dtype) -> None:
    """The same weights in another dtype."""
    from safetensors.torch import load_file
    from safetensors.torch import save_file as save

    save({name: tensor.to(dtype) for name, tensor in load_file(path).items()}, path)


def test_shapes_that_fill_no_tile(tmp_path: Path) -> None:
    """Odd vocabulary, sizes that are 32 times an odd number, heads of five vectors."""
    config = replace(
        BASE, hidden_size=160, intermediate_size=96, num_heads=6, head_dim=80, vocab_size=VOCAB
    )
    path = write_gguf(
        tmp_path / "m.gguf", config, random_weights(config), quantize_matrices("Q4_0")
    )
    assert mean_kl(fp32(path), logits_of(path)) < ROUNDED


def test_what_cannot_run_is_refused_by_name(tmp_path: Path) -> None:
    narrow = replace(BASE, head_dim=40)
    path = write_gguf(tmp_path / "m.gguf", narrow, random_weights(narrow))
    with pytest.raises(ConfigError, match="head_dim must be a multiple of 16 on the CPU, got 40"):
        logits_of(path)
    path = write_safetensors(tmp_path, BASE, random_weights(BASE))
    whole = {"model.norm.weight": np.zeros(4, np.int8)}
    save_file(whole, path)
    with pytest.raises(WeightsError, match=r"'model\.norm\.weight' has format 'I8'"):
        logits_of(path)
