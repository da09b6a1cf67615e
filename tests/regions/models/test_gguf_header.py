"""GGUF metadata: read right, and refused by name when the file is not to be trusted."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.regions.tiny_model import write_bpe

from skerry_regions.models.gguf_header import GGUFError, read_metadata


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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"GG", "too short"),
        (b"\0" * 24, "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1 is not supported"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 60), "keys, more than"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 1 << 60), "bytes of a string, more than"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 9) + b"abc", "cut short"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + pair("k", 99, b""), "k is of unknown type 99"),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + pair("k", 9, struct.pack("<IQ", 4, 1 << 40)),
            "elements of k, more than",
        ),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + pair("k", 9, struct.pack("<IQ", 9, 1)),
            "k is an array of unknown type 9",
        ),
        (
            struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + pair("k", 8, struct.pack("<Q", 1) + b"\xff"),
            "not UTF-8",
        ),
    ],
)
def test_untrustworthy_files_are_refused_by_name(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=rf"bad\.gguf: .*{message}"):
        read_metadata(path)


def test_any_cut_and_any_flip_is_an_error_or_a_reading(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("gguf")
    data = write_bpe(folder / "a.gguf").read_bytes()

    @given(st.integers(0, len(data)), st.integers(0, len(data) - 1), st.integers(1, 255))
    def check(size: int, position: int, mask: int) -> None:
        damaged = bytearray(data)
        damaged[position] ^= mask
        path = folder / "b.gguf"
        path.write_bytes(damaged[:size])
        with contextlib.suppress(GGUFError):
            read_metadata(path)

    check()
