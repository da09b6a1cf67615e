"""Families and formats of GGUF against llama.cpp, on files that the tests write.

llama.cpp keeps KV in float16, rounds activations where a format makes it, and a few functions by
itself: its logits are near, not equal. transformers is the judge (`test_families`); this shows that
what we read out of a GGUF file is what others read out of it.

`python -m tests.core.runners.test_llama_cpp` prints the table.
"""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import pytest
from tests.core.llama_cpp import LlamaCpp
from tests.core.random_models import quantize_matrices, random_weights, write_gguf
from tests.core.reference_model import kl_divergence
from tests.core.runners.family_table import FAMILIES
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import KINDS, VOCAB
from tests.core.runners.saved_family import TOKENS, save
from tests.core.runners.test_families import SIZES, as_converted, say

from skerry_core.weights.gguf import GGUF_FORMATS

pytestmark = pytest.mark.slow

# What llama.cpp has not: windows of Llama's, Qwen2's and Phi-3's architecture, and YaRN's limits as
# gpt-oss states them, unrounded. Its converter writes an amplitude that transformers works out.
UNLIKE: dict[str, dict[str, Any]] = {
    "mistral": {"fields": {"sliding_window": None}},
    "qwen2": {"fields": {"use_sliding_window": False}},
    "phi3": {"fields": {"sliding_window": None}},
    "phi3, a part of each head and LongRoPE": {
        "metadata": {"phi3.rope.scaling.attn_factor": sqrt(1 + log(8) / log(64))}
    },
    "gpt_oss": {
        "fields": {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}},
        "metadata": {
            "gpt-oss.rope.scaling.type": "none", "gpt-oss.rope.scaling.factor": 1.0,
        },
    },
}  # fmt: skip
IN_GGUF = [name for name, family in FAMILIES.items() if family.arch is not None]
MOST_KL = 1e-4  # nats, of any token: both have KV in float16, and round it differently
ROUNDED = 3e-3  # llama.cpp's activations have 8 bits in blocks of 256 beside K formats, ours of 32


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """One that llama.cpp opens."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_types([gguf.TokenType.NORMAL] * VOCAB)
    writer.add_token_merges(["a b"])


def family_file(folder: Path, name: str) -> Path:
    family, own = FAMILIES[name], UNLIKE.get(name, {})
    family = replace(
        family,
        fields=family.fields | own.get("fields", {}),
        metadata=family.metadata | own.get("metadata", {}),
    )
    saved = save(family, folder)
    return write_gguf(
        folder / "m.gguf", saved.config, as_converted(saved), metadata=family.metadata,
        also=add_tokenizer,
    )  # fmt: skip


def divergence(path: Path, tokens: list[int], kind: str = "numba") -> float:
    """KL of our logits from llama.cpp's, the largest of any token."""
    peer = LlamaCpp(path)
    theirs = peer.logits(tokens)
    peer.close()
    runner = KINDS[kind].open(path, **SIZES)
    ours = teacher_forced(runner, tokens, (len(tokens) - 50, 1, 49), table=[5, 0, 3])
    runner.close()
    return float(kl_divergence(theirs, ours).max())


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_family_is_read_as_llama_cpp_reads_it(tmp_path: Path, name: str) -> None:
    assert divergence(family_file(tmp_path, name), TOKENS) < MOST_KL


@pytest.mark.parametrize("format_", sorted(GGUF_FORMATS))
def test_a_format_is_read_as_llama_cpp_reads_it(tmp_path: Path, format_: str) -> None:
    assert divergence(format_file(tmp_path, format_), TOKENS) < ROUNDED


def format_file(folder: Path, format_: str) -> Path:
    from tests.core.cpu.test_numba_models import WIDE

    path = folder / f"{format_}.gguf"
    return write_gguf(path, WIDE, random_weights(WIDE), quantize_matrices(format_),
                      also=add_tokenizer)  # fmt: skip


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        for number, family_name in enumerate(IN_GGUF):
            own = Path(temporary, str(number))
            own.mkdir()
            found = [
                divergence(family_file(own, family_name), TOKENS, kind)
                for kind in ("numba", "torch")
            ]
            say(f"{family_name:45}{found[0]:12.1e}{found[1]:12.1e}")
        for each in sorted(GGUF_FORMATS):
            say(f"{each:45}{divergence(format_file(Path(temporary), each), TOKENS):12.1e}")
