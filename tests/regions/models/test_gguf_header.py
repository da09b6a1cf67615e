"""GGUF metadata is read right. Hostile headers: `tests/core/weights/test_gguf_headers.py`."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.regions.tiny_model import write_bpe

from skerry_regions.models.foreign.gguf_header import read_metadata


def file(path: Path, *, version: int = 3, num_keys: int = 1, pairs: bytes = b"") -> Path:
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", version, 0, num_keys) + pairs)
    return path


def pair(key: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


def test_reads_what_the_gguf_package_wrote(tmp_path: Path) -> None:
    metadata = read_metadata(write_bpe(tmp_path / "a.gguf"))
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.context_length"] == 64
    assert metadata["tokenizer.ggml.merges"] == ["a b", "Ġ ab"]
    assert metadata["tokenizer.ggml.token_type"] == [3, 3, *[1] * 98]


def test_every_scalar_and_array(tmp_path: Path) -> None:
    values = {
        **{0: ("B", 200), 1: ("b", -5), 2: ("H", 60000), 3: ("h", -5), 4: ("I", 1), 5: ("i", -1)},
        **{6: ("f", 0.5), 7: ("?", True), 10: ("Q", 1 << 63), 11: ("q", -1), 12: ("d", 0.1)},
    }
    pairs = b""
    for kind, (code, value) in values.items():
        pairs += pair(f"s{kind}", kind, struct.pack(f"<{code}", value))
        array = struct.pack("<IQ", kind, 2) + struct.pack(f"<2{code}", value, value)
        pairs += pair(f"a{kind}", 9, array)
    metadata = read_metadata(file(tmp_path / "a", num_keys=22, pairs=pairs))
    for kind, (_, value) in values.items():
        assert metadata[f"s{kind}"] == value
        assert metadata[f"a{kind}"] == [value, value]
