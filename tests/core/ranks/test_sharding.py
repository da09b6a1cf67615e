"""Parts of a model: every weight is on the ranks that use it, and no other is read there."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
import pytest
from tests.core.random_models import mixed, random_weights, write_gguf
from tests.core.runners.family_table import FAMILIES
from tests.core.runners.saved_family import save

from skerry_core.batch import Float32
from skerry_core.config import LayerConfig, ModelConfig
from skerry_core.models.sharding import Shard
from skerry_core.models.stages import ModelStage
from skerry_core.models.tensor_names import expected_shapes
from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.files import map_file
from skerry_core.weights.tensors import Bytes, dequantize

LARGE = ModelConfig(
    architecture="llama", layers=(LayerConfig(),) * 3, hidden_size=512, intermediate_size=1536,
    num_heads=4, num_kv_heads=2, head_dim=128, vocab_size=1001, max_context=512,
    tied_embeddings=False,
)  # fmt: skip
HALF = Shard(stage=ModelStage(1, 3, 3), tensor_rank=1, tensor_size=2)


def check_half(part: WeightFile, whole: WeightFile, *, is_tied: bool) -> None:
    """A tied model's head is what its embedding would be."""
    seen = set[str]()
    for local, tensor in part.tensors.items():
        name = re.sub(r"blk\.(\d)", lambda match: f"blk.{int(match[1]) + 1}", local)
        name = "token_embd.weight" if is_tied and name == "output.weight" else name
        expected = by_hand(name, dequantize(whole.tensors[name]))
        np.testing.assert_array_equal(dequantize(tensor), expected, err_msg=name)
        seen.add(name)
    embedding = set[str]() if is_tied else {"token_embd.weight"}
    assert set(whole.tensors) - seen == {n for n in whole.tensors if ".0." in n} | embedding


def by_hand(name: str, whole: Float32) -> Float32:
    """What HALF has of a tensor, as Shoeybi et al. divide it."""
    rows, columns = len(whole) // 2, whole.shape[-1] // 2
    if name in ("output.weight", "token_embd.weight"):
        return whole[-(-len(whole) // 2) :]
    if re.search(r"attn_[qkv]|ffn_(gate|up)\.", name):
        return whole[rows:]
    if re.search(r"(gate|up)_exps\.weight", name):
        return whole[:, whole.shape[1] // 2 :]
    if re.search(r"attn_output\.weight|ffn_down.*\.weight|_exps\.bias|attn_sinks", name):
        zeroed = name.endswith("down_exps.bias")
        return np.zeros_like(whole) if zeroed else whole[..., columns:]
    return np.zeros_like(whole) if name.endswith("attn_output.bias") else whole


@pytest.mark.parametrize("name", ["gpt_oss", "phi3", "mixtral", "qwen2", "granite"])
def test_a_rank_has_its_part_of_what_transformers_saves(name: str, tmp_path: Path) -> None:
    """Fused matrices, experts in one tensor and one by one, biases, tied embeddings."""
    saved = save(replace(FAMILIES[name], fields=FAMILIES[name].fields | {
        "num_hidden_layers": 3, "intermediate_size": 128}), tmp_path)  # fmt: skip
    with WeightFile.open(tmp_path) as whole, WeightFile.open(tmp_path, shard=HALF) as part:
        check_half(part, whole, is_tied=saved.config.tied_embeddings)


def test_a_rank_has_its_blocks_of_a_gguf_file(tmp_path: Path) -> None:
    """Q and K lie otherwise there; blocks of 256 weights."""
    path = write_gguf(tmp_path / "m.gguf", LARGE, random_weights(LARGE), mixed)
    with WeightFile.open(path) as whole, WeightFile.open(path, shard=HALF) as part:
        assert part.tensors["blk.0.ffn_down.weight"].format == "Q4_K"
        check_half(part, whole, is_tied=False)


@pytest.mark.parametrize("name", ["mistral", "phi3", "mixtral"])
def test_only_a_ranks_part_is_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is copied out of the mapped file is a view of it, with no byte beside the part."""
    files: list[Bytes] = []

    def mapped(path: Path) -> Bytes:
        files.append(map_file(path))
        return files[-1]

    monkeypatch.setattr("skerry_core.models.weight_file.map_file", mapped)
    config = save(FAMILIES[name], tmp_path).config
    shard = Shard(stage=ModelStage(2, 4, 4), tensor_rank=1, tensor_size=2)
    with WeightFile.open(tmp_path, shard=shard) as part:
        pieces = [piece for tensor in part.tensors.values() for piece in tensor.parts()]
        assert all(np.shares_memory(piece.by_row, files[-1]) for piece in pieces)
        read = sum(piece.by_row.nbytes for piece in pieces)
    whole = sum(4 * prod(shape) for shape in expected_shapes(config).values())
    assert 0.25 < read / whole < 0.4  # half of half the layers; norms, routers, and of widths more
