"""Tensors of GGUF files: hostile descriptions are refused by name, cut and damaged files too."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.random_models import random_weights, write_gguf
from tests.core.weights.gguf_files import U64_MAX, gguf_bytes, info, pair, text
from tests.core.weights.test_weights import CONFIG

from skerry_core.weights.gguf import read_gguf
from skerry_core.weights.tensors import FORMATS, FileTensor, WeightsError


def parse(raw: bytes) -> Any:
    """Read everything: metadata, and tensors."""
    contents = read_gguf(np.frombuffer(raw, np.uint8), "m.gguf")
    return contents.metadata, contents.tensors()


def test_the_smallest_sound_file() -> None:
    raw = gguf_bytes(pairs=(pair(b"a", 4, struct.pack("<I", 7)),), infos=(info(),))
    metadata, tensors = parse(raw)
    assert metadata == {"a": 7}
    assert tensors["t"].shape == (32,)


HOSTILE = {
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
        _, tensors = parse(bytes(raw))
    except WeightsError:
        return
    for tensor in tensors.values():
        assert num_bytes(tensor) == len(tensor.data)


def num_bytes(tensor: FileTensor) -> int:
    """Bytes that a tensor of this shape has."""
    block_size, block_bytes, _ = FORMATS[tensor.format]
    return int(np.prod(tensor.shape)) // block_size * block_bytes
