"""Weight files: what is read equals what was written, and hostile files are refused by name."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.core.random_models import (
    LLAMA3_JSON,
    alike,
    quantize_matrices,
    random_weights,
    rope_of,
    scaled_rope,
    write_gguf,
    write_safetensors,
)
from tests.core.reference_model import ReferenceModel

from skerry_core.config import LayerConfig, ModelConfig, RopeConfig
from skerry_core.models.weight_file import WeightFile, content_files
from skerry_core.weights.gguf import GGUF_FORMATS
from skerry_core.weights.quantizers import QUANTIZERS
from skerry_core.weights.tensors import (
    FORMATS,
    FileTensor,
    WeightsError,
    dequantize,
)
from skerry_regions.models.model_files import ModelFiles

CONFIG = ModelConfig(
    architecture="llama",
    layers=(LayerConfig(rope=RopeConfig(theta=50_000.0)),) * 2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=80,
    max_context=512,
)
CONFIGS = {
    "llama": CONFIG,
    "llama, untied": replace(CONFIG, tied_embeddings=False),
    "qwen2": replace(CONFIG, architecture="qwen2", attention_bias=True),
    "qwen3": replace(CONFIG, architecture="qwen3", qk_norm="head", head_dim=32),
    "mistral": alike(replace(CONFIG, architecture="mistral"), window=100),
}


# -- formats -----------------------------------------------------------------------------------


def random_blocks(format_: str, rng: np.random.Generator, count: int = 500) -> Any:
    """Random bytes with sane scales: u8[count, block_bytes]."""
    blocks = rng.integers(0, 256, (count, FORMATS[format_].block_bytes), np.uint8)

    def put_f16(start: int, columns: int) -> None:
        scales = rng.normal(size=(count, columns)).astype(np.float16)
        blocks[:, start : start + 2 * columns] = scales.view(np.uint8)

    if format_ == "F32":
        return rng.normal(size=(count, 1)).astype(np.float32).view(np.uint8)
    if format_ == "MXFP4":
        blocks[:, 0] = np.arange(count) % 252  # all exponents whose values are finite
        return blocks
    has_minimum = format_ in ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
    put_f16(208 if format_ == "Q6_K" else 0, 2 if has_minimum else 1)
    return blocks


@pytest.mark.parametrize("format_", GGUF_FORMATS)
def test_every_format_dequantizes_as_gguf_does(format_: str) -> None:
    blocks = random_blocks(format_, np.random.default_rng(1))
    block_size = FORMATS[format_].block_size
    native = {"F32": np.float32, "F16": np.float16}.get(format_, np.uint8)
    expected = gguf.quants.dequantize(blocks.view(native), gguf.GGMLQuantizationType[format_])
    tensor = FileTensor(format_, (len(blocks), block_size), blocks.reshape(-1))
    np.testing.assert_array_equal(dequantize(tensor), expected.reshape(tensor.shape))


# -- sound files -------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_gguf_gives_back_configuration_and_weights(tmp_path: Path, config: ModelConfig) -> None:
    weights = random_weights(config)
    with WeightFile.open(write_gguf(tmp_path / "m.gguf", config, weights)) as file:
        named_llama = {"mistral": "llama"}.get(config.architecture, config.architecture)
        assert file.config == replace(
            config,
            architecture=named_llama,
            layers=file.config.layers,
            rms_norm_eps=pytest.approx(config.rms_norm_eps),
        )
        for layer, written in zip(file.config.layers, config.layers, strict=True):
            assert layer.window == written.window
            assert layer.rope is not None
            assert layer.rope.theta == pytest.approx(50_000.0)
        assert set(file.tensors) == set(weights)
        for name, tensor in file.tensors.items():
            np.testing.assert_array_equal(dequantize(tensor), weights[name], err_msg=name)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_safetensors_gives_back_configuration_and_weights(
    tmp_path: Path, config: ModelConfig
) -> None:
    weights = random_weights(config)
    with WeightFile.open(write_safetensors(tmp_path, config, weights)) as file:
        assert file.config == config
        assert set(file.tensors) == set(weights)
        for name, tensor in file.tensors.items():
            np.testing.assert_array_equal(dequantize(tensor), weights[name], err_msg=name)


def split(folder: Path, parts: int) -> Path:
    """The folder's one safetensors file as several, as hubs keep large models."""
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(whole)
    for part in range(parts):
        chosen = {name: whole[name] for name in names[part::parts]}
        save_file(chosen, folder / f"model-{part + 1:05}-of-{parts:05}.safetensors")
    return folder


@pytest.mark.parametrize("parts", [1, 3])
def test_a_folder_is_read_whole(tmp_path: Path, parts: int) -> None:
    weights = random_weights(CONFIG)
    folder = split(write_safetensors(tmp_path, CONFIG, weights).parent, parts)
    with WeightFile.open(folder) as file:
        assert file.config == CONFIG
        assert set(file.tensors) == set(weights)
        for name, tensor in file.tensors.items():
            np.testing.assert_array_equal(dequantize(tensor), weights[name], err_msg=name)
    assert len(content_files(folder)) == parts + 1


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"0 \.safetensors files"):
        WeightFile.open(tmp_path)
    write_safetensors(tmp_path, CONFIG, random_weights(CONFIG))
    shutil.copyfile(tmp_path / "model.safetensors", tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match=r"other\.safetensors: tensor '.*' is in another file"):
        WeightFile.open(tmp_path)


@pytest.mark.parametrize("format_", ["Q4_0", "Q4_1", "Q8_0", "F16", "BF16"])
def test_quantized_rows_of_q_and_k_are_reordered_whole(tmp_path: Path, format_: str) -> None:
    weights = random_weights(CONFIG)
    path = write_gguf(tmp_path / "m.gguf", CONFIG, weights, quantize_matrices(format_))
    kind = gguf.GGMLQuantizationType[format_]
    with WeightFile.open(path) as file:
        for name in ("blk.1.attn_q.weight", "blk.1.attn_k.weight", "blk.1.attn_v.weight"):
            expected = gguf.quants.dequantize(gguf.quants.quantize(weights[name], kind), kind)
            np.testing.assert_array_equal(dequantize(file.tensors[name]), expected, err_msg=name)
            assert file.tensors[name].format == format_


def test_a_tied_head_written_twice_is_read_once(tmp_path: Path) -> None:
    weights = random_weights(replace(CONFIG, tied_embeddings=False))
    with WeightFile.open(write_safetensors(tmp_path, CONFIG, weights)) as file:
        assert "output.weight" not in file.tensors


LLAMA3 = LLAMA3_JSON | {"original_max_position_embeddings": 8192}


def test_llama3_scaling_from_json(tmp_path: Path) -> None:
    """By the formula of the model card."""
    path = write_safetensors(tmp_path, CONFIG, random_weights(CONFIG), rope_scaling=LLAMA3)
    frequencies = 50_000.0 ** -(np.arange(8) / 8)
    turns = 8192 * frequencies / (2 * np.pi)
    smooth = np.clip((turns - 1) / 3, 0, 1)
    rope = rope_of(WeightFile.open(path).config)
    np.testing.assert_allclose(rope.multipliers, (1 - smooth) / 8 + smooth, rtol=1e-12)
    assert (rope.theta, rope.amplitude) == (50_000.0, 1.0)


def test_llama3_scaling_from_gguf_divisors(tmp_path: Path) -> None:
    config = alike(CONFIG, rope=RopeConfig(theta=500_000.0))
    config = replace(config, head_dim=128, num_heads=1, num_kv_heads=1)
    frequencies = 500_000.0 ** -(np.arange(64) / 64)
    turns = 8192 * frequencies / (2 * np.pi)
    smooth = np.clip((turns - 1) / 3, 0, 1)
    divisors = (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)
    weights = random_weights(config)
    path = write_gguf(tmp_path / "a.gguf", config, weights | {"rope_freqs.weight": divisors})
    with WeightFile.open(path) as file:
        assert rope_of(file.config) == scaled_rope(LLAMA3, 128, theta=500_000.0)
        assert "rope_freqs.weight" not in file.tensors
    divisors[30] *= 1.1
    path = write_gguf(tmp_path / "b.gguf", config, weights | {"rope_freqs.weight": divisors})
    with pytest.raises(WeightsError, match=r"rope_freqs.weight.*not Llama 3's"):
        WeightFile.open(path)


def test_tensors_outlive_their_file(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    with WeightFile.open(write_gguf(tmp_path / "m.gguf", CONFIG, weights)) as file:
        tensor = file.tensors["output_norm.weight"]
    np.testing.assert_array_equal(dequantize(tensor), weights["output_norm.weight"])


# -- files that are sound and not a model ------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(WeightsError) as error:
        WeightFile.open(path)
    assert str(error.value).startswith(str(path.parent))
    return str(error.value)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"")
    assert "empty" in refused(path)
    path.write_bytes(b"hello")
    assert "neither a GGUF nor a .safetensors" in refused(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("blk.1.ffn_up.weight"), "tensor 'blk.1.ffn_up.weight' is missing"),
        (lambda w: w.pop("token_embd.weight"), "tensor 'token_embd.weight' is missing"),
        (
            lambda w: w.update({"blk.0.attn_q.weight": np.zeros((64, 32), np.float32)}),
            "'blk.0.attn_q.weight' has shape (64, 32), the model needs (64, 64)",
        ),
        (
            lambda w: w.update({"blk.0.ffn_gate_inp.weight": np.zeros((8, 64), np.float32)}),
            "'blk.0.ffn_gate_inp.weight' has no place",
        ),
    ],
)
def test_tensors_that_do_not_make_the_model(
    tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    weights = random_weights(CONFIG)
    change(weights)
    assert message in refused(write_gguf(tmp_path / "m.gguf", CONFIG, weights))


def test_an_unknown_hugging_face_tensor(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path, CONFIG, random_weights(CONFIG))
    save_file({"model.layers.0.mlp.experts.0.w1.weight": np.zeros(4, np.float32)}, path)
    assert "'model.layers.0.mlp.experts.0.w1.weight' has no place" in refused(path)


# -- the reference model -----------------------------------------------------------------------


def test_the_reference_model_is_the_same_from_either_file(tmp_path: Path) -> None:
    weights = random_weights(CONFIG)
    paths = (
        write_gguf(tmp_path / "m.gguf", CONFIG, weights),
        write_safetensors(tmp_path, CONFIG, weights),
    )
    from_gguf, from_safetensors = (
        ReferenceModel(WeightFile.open(path)).logits(range(20)) for path in paths
    )
    np.testing.assert_allclose(from_gguf, from_safetensors, rtol=1e-4, atol=1e-5)


@pytest.mark.model
def test_the_default_model_knows_the_capital_of_france(default_model: ModelFiles) -> None:
    with WeightFile.open(default_model.weights) as file:
        assert (file.config.num_layers, file.config.vocab_size) == (30, 49_152)
        prompt = [504, 3575, 282, 4649, 314]  # "The capital of France is"
        logits = ReferenceModel(file).logits(prompt)
    assert int(logits[-1].argmax()) == 7042  # " Paris"


@pytest.mark.parametrize("format_", ["Q8_0", "Q4_0", "Q4_1"])
def test_quantizes_as_gguf_does(format_: str) -> None:
    rows = np.random.default_rng(3).normal(size=(50, 96)).astype(np.float32)
    rows[0, :32] = 0  # a block without a scale
    rows[1] = 2.5
    theirs = gguf.quants.quantize(rows, gguf.GGMLQuantizationType[format_])
    np.testing.assert_array_equal(QUANTIZERS[format_](rows), theirs)
