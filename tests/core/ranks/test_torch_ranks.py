"""A model over several ranks of Torch computes what it does undivided."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.open_runners import open_on_torch
from tests.core.random_models import mixed, random_weights, write_gguf
from tests.core.ranks.thread_ranks import open_ranks
from tests.core.reference_model import kl_divergence
from tests.core.runners.family_table import FAMILIES
from tests.core.runners.hand_batches import check_same_bits_in_any_batch, teacher_forced
from tests.core.runners.runner_suite import MODELS, random_tokens, reference, write_model
from tests.core.runners.saved_family import TOKENS, save

from skerry_core.config import ConfigError, LayerConfig, ModelConfig

LESS_KL = 1e-8  # nats, of each token: everything is in float32
OFTEN = ("llama", "gemma2", "qwen3", "qwen2, windows in some layers", "phi3", "gpt_oss", "mixtral")
WHOLE, HALVES = [range(2)], [range(1), range(1, 2)]

# Of four KV heads, so that four ranks can share them; widths are not of whole blocks everywhere.
WIDE = ModelConfig(
    architecture="llama", layers=(LayerConfig(),) * 2, hidden_size=256, intermediate_size=1280,
    num_heads=8, num_kv_heads=4, head_dim=128, vocab_size=131, max_context=512,
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [*OFTEN, *(pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES if n not in OFTEN)]
)
def test_ranks_run_what_transformers_saves(name: str, tmp_path: Path) -> None:
    """Two that share all layers, and two of each of two stages; in chunks, over blocks that are not
    in order."""
    saved = save(FAMILIES[name], tmp_path / "model")
    layers = saved.config.num_layers
    for stages in ([range(layers)], [range(1), range(1, layers)]):
        store = tmp_path / f"{len(stages)}"
        if saved.config.qk_norm == "whole":
            with pytest.raises(ConfigError, match="norms across the heads of q and k"):
                open_ranks(saved.folder, store, tensor=2, stages=stages, num_blocks=6)
            continue
        ranks = open_ranks(saved.folder, store, tensor=2, stages=stages, num_blocks=6)
        logits = teacher_forced(ranks, TOKENS, (100, 1, 49), table=[5, 0, 3])
        ranks.close()
        assert kl_divergence(saved.logits, logits).max() < LESS_KL


def test_norms_across_heads_run_in_stages(tmp_path: Path) -> None:
    saved = save(FAMILIES["olmo2"], tmp_path / "model")
    ranks = open_ranks(
        saved.folder, tmp_path / "store", stages=[range(3), range(3, 4)], num_blocks=6
    )
    logits = teacher_forced(ranks, TOKENS, (100, 1, 49), table=[5, 0, 3])
    ranks.close()
    assert kl_divergence(saved.logits, logits).max() < LESS_KL


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_four_ranks_share_quantised_layers(tmp_path: Path, is_deterministic: bool) -> None:
    """Blocks of 256 weights: five of them in what the feed-forward network has."""
    path = write_gguf(tmp_path / "m.gguf", WIDE, random_weights(WIDE), mixed)
    ranks = open_ranks(
        path, tmp_path / "store", tensor=4, stages=WHOLE, num_blocks=3,
        deterministic=is_deterministic,
    )  # fmt: skip
    assert [rank.model.intermediate_size for rank in ranks.ranks] == [256, 256, 256, 512]
    logits = teacher_forced(ranks, TOKENS, (149, 1), table=[2, 0, 1])
    ranks.close()
    assert kl_divergence(reference(path).logits(TOKENS), logits).max() < LESS_KL


def test_ranks_share_a_kv_head(tmp_path: Path) -> None:
    """Four, of which each has one of four queries' heads and the biases of it."""
    path = write_model(tmp_path, "qwen2")
    ranks = open_ranks(path, tmp_path / "store", tensor=4, stages=WHOLE, num_blocks=3)
    assert [(rank.model.num_heads, rank.model.num_kv_heads) for rank in ranks.ranks] == [(1, 1)] * 4
    tokens = random_tokens(150)
    logits = teacher_forced(ranks, tokens, (100, 1, 49), table=[2, 0, 1])
    np.testing.assert_allclose(logits, reference(path).logits(tokens), rtol=0, atol=2e-5)
    blocks = [rank.export_blocks([2])[0] for rank in ranks.ranks]
    ranks.close()
    assert all((block == blocks[0]).all() for block in blocks)


@pytest.mark.triton
@pytest.mark.skipif(torch.cuda.is_available(), reason="its kernels would be compiled for a GPU")
@pytest.mark.parametrize("is_deterministic", [pytest.param(True, marks=pytest.mark.slow), False])
def test_tritons_kernels_run_on_ranks(
    tmp_path: Path, is_deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts of two stages: sums, hidden states, and logits of a vocabulary that does not divide
    evenly. Triton's interpreter rewrites and runs one kernel at a time."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    run, one_at_a_time = interpreter.InterpretedFunction.run, threading.Lock()

    def locked(*arguments: Any, **options: Any) -> Any:
        with one_at_a_time:
            return run(*arguments, **options)

    monkeypatch.setattr(interpreter.InterpretedFunction, "run", locked)
    path, tokens = write_model(tmp_path, "qwen3"), random_tokens(24)
    ranks = open_ranks(
        path, tmp_path / "store", tensor=2, stages=HALVES, num_blocks=2, kernels="triton",
        deterministic=is_deterministic,
    )  # fmt: skip
    logits = teacher_forced(ranks, tokens, (20, 3, 1), table=[1])
    ranks.close()
    np.testing.assert_allclose(logits, reference(path).logits(tokens), rtol=0, atol=2e-5)


# --- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tensor", "stages", "dtype"),
    [
        ("llama", 2, HALVES, torch.bfloat16),
        pytest.param("llama", 2, WHOLE, torch.float32, marks=pytest.mark.slow),
        pytest.param("mistral", 4, WHOLE, torch.float32, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_deterministic_bits_are_equal_alone_and_in_any_batch(
    tmp_path: Path, name: str, tensor: int, stages: Sequence[range], dtype: torch.dtype
) -> None:
    ranks = open_ranks(
        write_model(tmp_path, name), tmp_path / "store", tensor=tensor, stages=stages,
        num_blocks=24, dtype=dtype, deterministic=True,
    )  # fmt: skip
    check_same_bits_in_any_batch(ranks)
    ranks.close()


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_stages_have_the_bits_of_the_whole_and_its_build(
    tmp_path: Path, is_deterministic: bool, dtype: torch.dtype
) -> None:
    path, tokens = write_model(tmp_path, "smollm3"), random_tokens(150)
    whole = open_on_torch(
        path, num_blocks=3, max_samples=512, threads=1, device="cpu", dtype=dtype,
        deterministic=is_deterministic,
    )  # fmt: skip
    expected = teacher_forced(whole, tokens, (100, 1, 49), table=[2, 0, 1])
    ranks = open_ranks(
        path, tmp_path / "store", stages=HALVES, num_blocks=3, dtype=dtype,
        deterministic=is_deterministic,
    )  # fmt: skip
    assert {rank.numeric_build for rank in ranks.ranks} == {whole.numeric_build}
    logits = teacher_forced(ranks, tokens, (100, 1, 49), table=[2, 0, 1])
    ranks.close()
    np.testing.assert_array_equal(logits, expected)


def test_ranks_that_share_layers_are_another_build(tmp_path: Path) -> None:
    path = write_model(tmp_path, "mistral")
    builds = {open_on_torch(path, num_blocks=3, threads=1, device="cpu").numeric_build}
    for tensor in (2, 4):
        ranks = open_ranks(path, tmp_path / f"{tensor}", tensor=tensor, stages=WHOLE, num_blocks=3)
        own = {rank.numeric_build for rank in ranks.ranks}
        ranks.close()
        assert len(own) == 1
        builds |= own
    assert len(builds) == 3


def test_what_cannot_be_divided_is_refused(tmp_path: Path) -> None:
    def divide(config: ModelConfig, tensor: int, format_: str = "F32") -> None:
        path = write_gguf(
            tmp_path / "m.gguf", config, random_weights(config),
            lambda name: "F32" if "norm" in name else format_,
        )  # fmt: skip
        open_ranks(path, tmp_path / "store", tensor=tensor, stages=WHOLE, num_blocks=3)

    with pytest.raises(ConfigError, match="6 heads with 2 KV heads cannot be divided among 4"):
        divide(MODELS["llama"], 4)
    with pytest.raises(ConfigError, match="of 256, in blocks of 256 weights, cannot be divided"):
        divide(replace(WIDE, intermediate_size=256), 2, "Q4_K")
    narrow = replace(WIDE, num_heads=4, num_kv_heads=4, head_dim=64)
    with pytest.raises(ConfigError, match=r"'blk.0.attn_output.weight' cannot be divided: 64 col"):
        divide(narrow, 4, "Q4_K")
