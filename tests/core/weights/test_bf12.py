"""BF12: every bit of bf16 comes back, of three quarters of the bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tests.core.random_models import random_weights, write_safetensors
from tests.properties import examples

from skerry_core.config import LayerConfig, ModelConfig, RopeConfig
from skerry_core.models.compression import compress
from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.bf12 import BF12Matrix, encode
from skerry_core.weights.bf12_files import join_bf12
from skerry_core.weights.files import map_file
from skerry_core.weights.safetensors import read_safetensors
from skerry_core.weights.tensors import FileTensor, WeightsError, dequantize
from skerry_regions.models.model_files import ModelFiles

Bits = NDArray[np.uint16]


def gaussian(rows: int, columns: int) -> Bits:
    values = np.random.default_rng(7).standard_normal((rows, columns)).astype(np.float32) * 0.02
    return bits_of(values)


def bits_of(values: NDArray[np.float32]) -> Bits:
    """Round as Torch does."""
    bits: Bits = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    return bits


def by_one(matrix: BF12Matrix) -> Bits:
    """The format's meaning, one weight after another."""
    rows, columns = matrix.signs.shape
    escaped = dict(zip(matrix.escapes.tolist(), matrix.exponents.tolist(), strict=True))
    weights = np.empty((rows, columns), np.uint16)
    for row in range(rows):
        for column in range(columns):
            sign = int(matrix.signs[row, column])
            code = int(matrix.codes[row, column // 2]) >> 4 * (column % 2) & 15
            exponent = int(matrix.firsts[row]) + code
            if code == 15:
                exponent = escaped[(row * columns + column) // 16][column % 16]
            weights[row, column] = (sign >> 7) << 15 | exponent << 7 | sign & 127
    return weights


def test_every_bit_pattern_comes_back() -> None:
    every = np.arange(65536, dtype=np.uint16)
    for weights in (every.reshape(512, 128), every.reshape(128, 512).T.reshape(512, 128)):
        np.testing.assert_array_equal(encode(weights).decoded(), weights)


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.integers(1, 5), groups=st.integers(1, 4), seed=st.integers(0, 2**32),
    low=st.integers(0, 254), width=st.integers(1, 40),
)  # fmt: skip
def test_what_is_written_means_what_is_said(
    rows: int, groups: int, seed: int, low: int, width: int
) -> None:
    rng = np.random.default_rng(seed)
    shape = (rows, 16 * groups)
    exponents = rng.integers(low, min(low + width, 256), shape)
    weights = (rng.integers(0, 512, shape) % 256 << 8 & 0x8000 | exponents << 7).astype(np.uint16)
    weights |= rng.integers(0, 128, shape).astype(np.uint16)
    matrix = encode(weights)
    np.testing.assert_array_equal(by_one(matrix), weights)
    np.testing.assert_array_equal(matrix.decoded(), weights)
    if width <= 15:
        assert len(matrix.escapes) == 0
        assert matrix.num_bytes == weights.size * 3 // 2 + rows


def test_rows_beyond_one_part_keep_their_groups_numbers() -> None:
    weights = gaussian(1, 1 << 22).repeat(3, axis=0)
    weights[:, 5] = 0x7FC0  # not a number
    matrix = encode(weights)
    assert {0, 1 << 18, 2 << 18} <= set(matrix.escapes.tolist())
    np.testing.assert_array_equal(matrix.decoded(), weights)


def test_a_gaussian_matrix_takes_three_quarters() -> None:
    weights = gaussian(1024, 4096)
    assert 0.75 < encode(weights).num_bytes / weights.nbytes < 0.7525


@pytest.mark.model
def test_a_trained_models_matrices_take_three_quarters(embedding_model: ModelFiles) -> None:
    [file] = embedding_model.weights.glob("*.safetensors")
    tensors = read_safetensors(map_file(file), "minilm", takes_raw=True)
    matrices = [each for each in tensors.values() if len(each.shape) == 2 and each.shape[0] > 64]
    assert len(matrices) > 30
    bits = [bits_of(dequantize(each)) for each in matrices]
    encoded = [encode(each) for each in bits]
    for matrix, weights in zip(encoded, bits, strict=True):
        np.testing.assert_array_equal(matrix.decoded(), weights)
    ratio = sum(e.num_bytes for e in encoded) / sum(b.nbytes for b in bits)
    assert 0.75 < ratio < 0.754


def test_parts_that_do_not_fit_are_refused() -> None:
    weights = gaussian(4, 64)
    weights[1, 20] = 0
    good = encode(weights)
    assert good.escapes.tolist() == [5]
    parts: dict[str, Any] = {name: getattr(good, name) for name in BF12Matrix.__slots__}
    spoilt: dict[str, dict[str, Any]] = {
        "codes \\(4, 16\\) of": {"codes": good.codes[:, :16]},
        "not those of windows": {"firsts": np.full(4, 242, np.uint8)},
        "exponents \\(0, 16\\) of 1": {"exponents": good.exponents[:0]},
        "do not ascend": {
            "escapes": np.array([5, 5], np.int32), "exponents": good.exponents.repeat(2, 0),
        },
        "outside of the matrix": {"escapes": np.array([16], np.int32)},
    }  # fmt: skip
    for message, changed in spoilt.items():
        with pytest.raises(ValueError, match=message):
            BF12Matrix(**parts | changed)
    parts["escapes"] = np.array([6], np.int32)
    moved = BF12Matrix(**parts)
    with pytest.raises(ValueError, match="escape other groups"):
        moved.decoded()


LLAMA = ModelConfig(
    architecture="llama",
    layers=(LayerConfig(rope=RopeConfig()),) * 2,
    hidden_size=128,
    intermediate_size=192,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    vocab_size=160,
    max_context=512,
    tied_embeddings=False,
)
CONFIG = {"model_type": "llama", "hidden_size": 64}


def model(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text("{}")
    return folder


def matrices() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    wide = torch.randn(96, 64) * 0.02
    wide[7, 9] = 0.0
    return {
        "model.layers.0.self_attn.q_proj.weight": wide.bfloat16(),
        "model.embed_tokens.weight": (torch.randn(80, 64) * 0.02).bfloat16(),
        "model.norm.weight": torch.rand(64).bfloat16(),
        "odd": torch.randn(4, 24).bfloat16(),
        "random bits": torch.randint(0, 32767, (8, 64), dtype=torch.int16).view(torch.bfloat16),
        "floats": torch.randn(8, 64),
    }


def test_a_model_is_copied_and_read_back(tmp_path: Path) -> None:
    tensors = matrices()
    source, target = model(tmp_path / "plain", tensors), tmp_path / "deep" / "smaller"
    shares: list[float] = []
    before, after = compress(source, target, shares.append)
    assert (before, after) == tuple(
        (each / "model.safetensors").stat().st_size for each in (source, target)
    )
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] <= 1.0
    assert sorted(each.name for each in target.iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    stated = json.loads((target / "config.json").read_text())
    assert stated == CONFIG | {"quantization_config": {"quant_method": "bf12", "version": 1}}

    by_library = load_file(target / "model.safetensors")
    for name in ("model.norm.weight", "odd", "random bits", "floats"):
        kept, own = by_library[name], tensors[name]
        assert torch.equal(kept.view(torch.uint8), own.view(torch.uint8)), name
    q = by_library["model.layers.0.self_attn.q_proj.weight.bf12_escapes"]
    assert q.tolist() == [7 * 4]
    raw = read_safetensors(map_file(target / "model.safetensors"), "smaller", takes_raw=True)
    joined = join_bf12(raw, "smaller")
    assert joined.keys() == tensors.keys()
    for name, own in tensors.items():
        assert joined[name].shape == tuple(own.shape)
        assert bytes(joined[name].data) == own.view(torch.uint8).numpy().tobytes(), name


def test_a_model_is_opened_with_every_weight_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    path = write_safetensors(tmp_path / "plain", LLAMA, random_weights(LLAMA))
    save_file({name: each.bfloat16() for name, each in load_file(path).items()}, path)
    before, after = compress(tmp_path / "plain", tmp_path / "smaller", lambda share: None)
    assert after < 0.8 * before
    plain, smaller = (WeightFile.open(tmp_path / name).tensors for name in ("plain", "smaller"))
    assert plain.keys() == smaller.keys()
    for name, tensor in plain.items():
        assert tensor.format == smaller[name].format == "BF16"
        np.testing.assert_array_equal(tensor.rows, smaller[name].rows, err_msg=name)


def test_what_cannot_be_compressed_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    source = model(tmp_path / "plain", matrices())
    quantised = model(tmp_path / "quantised", matrices(), quantization_config={})
    broken = model(tmp_path / "broken", matrices())
    (broken / "z.safetensors").write_bytes(b"1234")
    (tmp_path / "there").mkdir()
    cases = [
        (source / "config.json", tmp_path / "new", "not a folder of safetensors"),
        (quantised, tmp_path / "new", "quantised already"),
        (source, tmp_path / "there", "exists already"),
        (broken, tmp_path / "new", "too short"),
    ]
    for folder, target, message in cases:
        with pytest.raises(WeightsError, match=message):
            compress(folder, target, lambda share: None)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "broken", "plain", "quantised", "there",
    ]  # fmt: skip


def test_hostile_files_are_refused_by_name(tmp_path: Path) -> None:
    compress(model(tmp_path / "plain", matrices()), tmp_path / "smaller", lambda share: None)
    file = map_file(tmp_path / "smaller" / "model.safetensors")
    good = read_safetensors(file, "f", takes_raw=True)
    name = "model.layers.0.self_attn.q_proj.weight"

    def changed(part: str, tensor: FileTensor | None) -> dict[str, FileTensor]:
        others = {key: each for key, each in good.items() if key != f"{name}.{part}"}
        return others if tensor is None else others | {f"{name}.{part}": tensor}

    odd = FileTensor("U8", (96, 63), np.zeros(96 * 63, np.uint8))
    far = FileTensor("I32", (1,), np.array([384], np.int32).view(np.uint8))
    cases = {
        "bf12_codes' is missing": changed("bf12_codes", None),
        "has no model.layers.0.self_attn.q_proj.weight.bf12_signs": changed("bf12_signs", None),
        r"bf12_signs' has shape \(96, 63\)": changed("bf12_signs", odd),
        r"bf12_codes' is U8 of shape \(96, 63\), its matrix needs U8 of \(96, 32\)": changed(
            "bf12_codes", odd
        ),
        "bf12_exponents' is missing": changed("bf12_exponents", None),
    }
    for message, tensors in cases.items():
        with pytest.raises(WeightsError, match=f"^f: tensor .*{message}"):
            join_bf12(tensors, "f")
    late = join_bf12(changed("bf12_escapes", far), "f")[name]
    with pytest.raises(WeightsError, match=f"^f: tensor '{name}': .* outside of the matrix"):
        _ = late.data
