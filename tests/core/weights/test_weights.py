"""Weight files: what is read equals what was written, and hostile files are refused by name."""

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tests.core.random_models import (
    quantize_matrices,
    random_weights,
    write_gguf,
    write_safetensors,
)
from tests.core.reference_model import ReferenceModel

from skerry_core.config import ModelConfig, RopeScaling
from skerry_core.weights.file import Tensor, WeightFile, WeightsError, content_files, dequantize
from skerry_core.weights.gguf import read_gguf
from skerry_core.weights.safetensors import read_safetensors
from skerry_core.weights.tensors import FORMATS
from skerry_regions.models.model_files import ModelFiles

CONFIG = ModelConfig(
    architecture="llama",
    num_layers=2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=80,
    max_context=512,
    rope_theta=50_000.0,
)
CONFIGS = {
    "llama": CONFIG,
    "llama, untied": replace(CONFIG, tied_embeddings=False),
    "qwen2": replace(CONFIG, architecture="qwen2", attention_bias=True),
    "qwen3": replace(CONFIG, architecture="qwen3", qk_norm=True, head_dim=32),
    "mistral": replace(CONFIG, architecture="mistral", sliding_window=100),
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
    put_f16(208 if format_ == "Q6_K" else 0, 2 if format_ in ("Q4_1", "Q4_K", "Q5_K") else 1)
    return blocks


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_dequantizes_as_gguf_does(format_: str) -> None:
    blocks = random_blocks(format_, np.random.default_rng(1))
    block_size = FORMATS[format_].block_size
    native = {"F32": np.float32, "F16": np.float16}.get(format_, np.uint8)
    expected = gguf.quants.dequantize(blocks.view(native), gguf.GGMLQuantizationType[format_])
    tensor = Tensor("t", format_, (len(blocks), block_size), blocks.reshape(-1))
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
            rope_theta=pytest.approx(config.rope_theta),
            rms_norm_eps=pytest.approx(config.rms_norm_eps),
        )
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


LLAMA3 = RopeScaling(
    factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=8192
)


def test_llama3_scaling_from_json(tmp_path: Path) -> None:
    config = replace(CONFIG, rope_scaling=LLAMA3)
    path = write_safetensors(tmp_path, config, random_weights(config))
    assert json.loads(path.with_name("config.json").read_bytes())["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    assert WeightFile.open(path).config == config


def test_llama3_scaling_from_gguf_divisors(tmp_path: Path) -> None:
    config = replace(CONFIG, rope_theta=500_000.0, head_dim=128, num_heads=1, num_kv_heads=1)
    frequencies = 500_000.0 ** -(np.arange(64) / 64)
    turns = 8192 * frequencies / (2 * np.pi)
    smooth = np.clip((turns - 1) / 3, 0, 1)
    divisors = (1 / ((1 - smooth) / 8 + smooth)).astype(np.float32)
    weights = random_weights(config)
    path = write_gguf(tmp_path / "a.gguf", config, weights | {"rope_freqs.weight": divisors})
    with WeightFile.open(path) as file:
        assert file.config.rope_scaling == LLAMA3
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


# -- hostile GGUF ------------------------------------------------------------------------------


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def info(
    name: bytes = b"t",
    dims: tuple[int, ...] = (32,),
    kind: int = 0,
    offset: int = 0,
) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    *,
    pairs: tuple[bytes, ...] = (),
    infos: tuple[bytes, ...] = (),
    version: int = 3,
    num_pairs: int | None = None,
    num_tensors: int | None = None,
    data: bytes = bytes(128),
) -> bytes:
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(infos) if num_tensors is None else num_tensors,
        len(pairs) if num_pairs is None else num_pairs,
    )
    head += b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data


def parse(raw: bytes) -> Any:
    return read_gguf(np.frombuffer(raw, np.uint8), "m.gguf")


def test_the_smallest_sound_file() -> None:
    contents = parse(gguf_bytes(pairs=(pair(b"a", 4, struct.pack("<I", 7)),), infos=(info(),)))
    assert contents.metadata == {"a": 7}
    assert contents.tensors["t"].shape == (32,)


U64_MAX = 2**64 - 1
HOSTILE = {
    "wrong magic": (b"GGML" + bytes(100), "not a GGUF file"),
    "only a magic": (b"GGUF", "truncated: version"),
    "old version": (gguf_bytes(version=1), "version 1"),
    "big-endian": (b"GGUF\x00\x00\x00\x03" + bytes(100), "version 50331648"),
    "many tensors": (gguf_bytes(num_tensors=U64_MAX), "number of tensors is 1844"),
    "many entries": (gguf_bytes(num_pairs=U64_MAX), "number of metadata entries is 1844"),
    "more entries than bytes": (gguf_bytes(num_pairs=60_000, data=b""), "truncated"),
    "giant key": (gguf_bytes(pairs=(struct.pack("<Q", U64_MAX),)), "length of metadata key"),
    "giant string": (
        gguf_bytes(pairs=(pair(b"a", 8, struct.pack("<Q", 1 << 60)),)),
        "length of metadata 'a'",
    ),
    "string past the end": (
        gguf_bytes(pairs=(pair(b"a", 8, struct.pack("<Q", 1000)),)),
        "truncated: metadata 'a'",
    ),
    "unknown type": (gguf_bytes(pairs=(pair(b"a", 99, b""),)), "unknown type 99"),
    "array of arrays": (
        gguf_bytes(pairs=(pair(b"a", 9, struct.pack("<IQ", 9, 1)),)),
        "array of unknown type 9",
    ),
    "giant array": (
        gguf_bytes(pairs=(pair(b"a", 9, struct.pack("<IQ", 4, 1 << 62)),)),
        "truncated: metadata 'a'",
    ),
    "giant array of strings": (
        gguf_bytes(pairs=(pair(b"a", 9, struct.pack("<IQ", 8, 1 << 62)),)),
        "'a' has 4611686018427387904 strings",
    ),
    "strings past the end": (
        gguf_bytes(pairs=(pair(b"a", 9, struct.pack("<IQQ", 8, 2, U64_MAX)),)),
        "'a' runs past the end",
    ),
    "key twice": (gguf_bytes(pairs=(pair(b"a", 7, b"\1"),) * 2), "'a' occurs twice"),
    "key not UTF-8": (gguf_bytes(pairs=(pair(b"\xff", 7, b"\1"),)), "not UTF-8"),
    "tensor twice": (gguf_bytes(infos=(info(), info())), "tensor 't' occurs twice"),
    "long tensor name": (gguf_bytes(infos=(info(b"x" * 300),)), "length of tensor name is 300"),
    "five dimensions": (gguf_bytes(infos=(info(dims=(1,) * 5),)), "dimensions of tensor 't' is 5"),
    "no dimensions": (gguf_bytes(infos=(info(dims=()),)), "tensor 't' has dimensions"),
    "a dimension of zero": (gguf_bytes(infos=(info(dims=(0, 4)),)), "tensor 't' has dimensions"),
    "overflowing dimensions": (
        gguf_bytes(infos=(info(dims=(1 << 32, 1 << 32)),)),
        "tensor 't' ends at byte",
    ),
    "offset past the end": (gguf_bytes(infos=(info(offset=1 << 20),)), "tensor 't' ends at byte"),
    "overflowing offset": (
        gguf_bytes(infos=(info(offset=U64_MAX - 31),)),
        "tensor 't' ends at byte",
    ),
    "unaligned offset": (gguf_bytes(infos=(info(offset=3),)), "tensor 't' at 3 is not aligned"),
    "data cut off": (gguf_bytes(infos=(info(),), data=bytes(100)), "tensor 't' ends at byte"),
    "part of a block": (gguf_bytes(infos=(info(dims=(33,), kind=3),)), "tensor 't': 33 columns"),
    "unsupported format": (gguf_bytes(infos=(info(kind=10),)), "tensor 't' has format Q2_K"),
    "unknown format": (gguf_bytes(infos=(info(kind=1000),)), "'t' has format number 1000"),
    "alignment of three": (
        gguf_bytes(pairs=(pair(b"general.alignment", 4, struct.pack("<I", 3)),)),
        "general.alignment 3",
    ),
    "alignment of zero": (
        gguf_bytes(pairs=(pair(b"general.alignment", 4, struct.pack("<I", 0)),)),
        "general.alignment 0",
    ),
    "alignment in words": (
        gguf_bytes(pairs=(pair(b"general.alignment", 8, text(b"32")),)),
        "general.alignment '32'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_gguf_is_refused_by_name(case: str) -> None:
    raw, message = HOSTILE[case]
    with pytest.raises(WeightsError, match=r"^m\.gguf: ") as error:
        parse(raw)
    assert message in str(error.value)


@pytest.fixture(scope="module")
def sound_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "m.gguf"
    return write_gguf(path, CONFIG, random_weights(CONFIG)).read_bytes()


def test_a_gguf_file_cut_anywhere_is_refused(sound_gguf: bytes) -> None:
    parse(sound_gguf)
    for length in (*range(0, 3000, 7), len(sound_gguf) - 64):
        with pytest.raises(WeightsError):
            parse(sound_gguf[:length])


@given(position=st.integers(0, 6000), value=st.binary(min_size=1, max_size=8))
def test_a_damaged_gguf_file_is_read_or_refused(
    sound_gguf: bytes, position: int, value: bytes
) -> None:
    raw = bytearray(sound_gguf)
    raw[position : position + len(value)] = value
    try:
        contents = parse(bytes(raw))
    except WeightsError:
        return
    for tensor in contents.tensors.values():
        assert num_bytes(tensor) == len(tensor.data)


def num_bytes(tensor: Tensor) -> int:
    """Bytes that a tensor of this shape has."""
    block_size, block_bytes, _ = FORMATS[tensor.format]
    return int(np.prod(tensor.shape)) // block_size * block_bytes


# -- hostile safetensors -----------------------------------------------------------------------


def safetensors_bytes(header: Any, data: bytes = bytes(16)) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def entry(dtype: Any = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE_SAFETENSORS = {
    "short": (b"1234", "too short"),
    "giant header": (struct.pack("<Q", U64_MAX), "header of 1844"),
    "header past the end": (struct.pack("<Q", 100) + b"{}", "header of 100"),
    "not JSON": (safetensors_bytes(b"{"), "not valid JSON"),
    "not UTF-8": (safetensors_bytes(b"\xff\xff"), "not valid JSON"),
    "deep": (safetensors_bytes(b"[" * 100_000), "not valid JSON"),
    "a list": (safetensors_bytes([]), "not a JSON object"),
    "a tensor twice": (safetensors_bytes(b'{"t": 1, "t": 2}'), "a key occurs twice"),
    "no description": (safetensors_bytes({"t": 1}), "tensor 't' is not described"),
    "unknown format": (safetensors_bytes({"t": entry("F8_E4M3")}), "tensor 't' has format 'F8"),
    "format not a string": (safetensors_bytes({"t": entry([1])}), "tensor 't' has format [1]"),
    "negative shape": (safetensors_bytes({"t": entry(shape=(-4,))}), "tensor 't' has shape"),
    "shape of truth": (safetensors_bytes({"t": entry(shape=(True,))}), "tensor 't' has shape"),
    "giant shape": (
        safetensors_bytes({"t": entry(shape=(1 << 61, 8))}),
        "tensor 't' of 73786976294838206464 bytes",
    ),
    "offsets past the end": (safetensors_bytes({"t": entry(offsets=(16, 32))}), "16 to 32 of 16"),
    "offsets backwards": (safetensors_bytes({"t": entry(offsets=(16, 0))}), "16 to 0 of 16"),
    "one offset": (safetensors_bytes({"t": entry(offsets=(0,))}), "data_offsets [0]"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE_SAFETENSORS)
def test_hostile_safetensors_is_refused_by_name(case: str) -> None:
    raw, message = HOSTILE_SAFETENSORS[case]
    with pytest.raises(WeightsError, match=r"^m\.safetensors: ") as error:
        read_safetensors(np.frombuffer(raw, np.uint8), "m.safetensors")
    assert message in str(error.value)


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


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "rotary scaling 'yarn' is not supported"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count is 8"),
    ],
)
def test_gguf_metadata_that_asks_for_what_is_not_done(
    tmp_path: Path, metadata: dict[str, int | str], message: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", CONFIG, random_weights(CONFIG), metadata=metadata)
    assert message in refused(path)


FULL, SLIDING = "full_attention", "sliding_attention"
WINDOWED = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 70}


@pytest.mark.parametrize(
    ("fields", "window"),
    [
        ({"model_type": "llama", "sliding_window": 70}, None),
        ({"model_type": "mistral", "sliding_window": 70}, 70),
        (WINDOWED | {"use_sliding_window": False}, None),
        (WINDOWED, None),
        (WINDOWED | {"max_window_layers": 2}, None),
        (WINDOWED | {"max_window_layers": 0}, 70),
        (WINDOWED | {"max_window_layers": 0, "layer_types": [FULL, FULL]}, None),
        (WINDOWED | {"layer_types": [SLIDING, SLIDING]}, 70),
    ],
)
def test_who_has_a_sliding_window(
    tmp_path: Path, fields: dict[str, Any], window: int | None
) -> None:
    """Qwen's begins at layer 28 unless told otherwise: the model has two."""
    path = write_safetensors(tmp_path, CONFIG, random_weights(CONFIG), **fields)
    assert WeightFile.open(path).config.sliding_window == window


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gemma3"}, "model_type 'gemma3' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rotary scaling 'yarn'"),
        (WINDOWED | {"max_window_layers": 1}, "a sliding window in some layers only"),
        (WINDOWED | {"layer_types": [FULL, SLIDING]}, "a sliding window in some layers only"),
        (WINDOWED | {"layer_types": 7}, "a sliding window in some layers only"),
        (WINDOWED | {"max_window_layers": -1}, "max_window_layers is -1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not supported"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_key_value_heads": 3}, "num_heads (4) must be a multiple of num_kv_heads"),
    ],
)
def test_json_that_asks_for_what_is_not_done(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    assert message in refused(write_safetensors(tmp_path, CONFIG, random_weights(CONFIG), **fields))


def test_an_unknown_hugging_face_tensor(tmp_path: Path) -> None:
    raw = safetensors_bytes({"model.layers.0.mlp.experts.0.w1.weight": entry()})
    path = tmp_path / "m.safetensors"
    path.write_bytes(raw)
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
