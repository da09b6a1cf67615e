"""Safetensors files: hostile headers are refused by name."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest

from skerry_core.weights.safetensors import read_safetensors
from skerry_core.weights.tensors import WeightsError

U64_MAX = 2**64 - 1


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
