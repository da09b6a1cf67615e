"""Routers of experts stay in float32, and see float activations.

With 8 bits of either other experts are chosen for some tokens, which no average over logits shows:
what transformers computes with such a router is beyond the bound that every family is held to, and
the choice itself is compared token by token where everything else is quantised.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.core.random_models import Weights, random_weights
from tests.core.reference_model import kl_divergence
from tests.core.runners.family_table import FAMILIES
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import KINDS
from tests.core.runners.saved_family import TOKENS, Saved, config_of, save
from tests.core.runners.test_features_matter import open_numba, open_torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from skerry_core.config import ExpertsConfig, LayerConfig, ModelConfig
from skerry_core.kernels.matmul.layout import PackedLayout
from skerry_core.kernels.torch import experts
from skerry_core.runners import numba_cpu
from skerry_core.runners.packing import packed
from skerry_core.weights.tensors import FileTensor

SPARSE = [name for name, family in FAMILIES.items() if config_of(family).experts is not None]
BOUND = 1e-5  # nats, of any token: what `test_families` holds the CPU to


def rounded(x: Tensor) -> Tensor:
    """Values in 8 bits, 32 neighbours to a scale, as the CPU's activations are beside weights of 8
    bits, and as these are."""
    blocks = x.detach().unflatten(-1, (-1, 32))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return ((blocks / scale).round() * scale).flatten(-2)


def round_weights(router: Any) -> None:
    router.weight.data = rounded(router.weight)


def round_activations(router: Any) -> None:
    router.register_forward_pre_hook(lambda module, given: (rounded(given[0]), *given[1:]))


@pytest.fixture(scope="module", params=SPARSE)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return save(FAMILIES[request.param], tmp_path_factory.mktemp("family"))


@pytest.mark.parametrize("change", [round_weights, round_activations])
def test_eight_bits_of_a_router_are_beyond_the_bound(
    saved: Saved, change: Callable[[Any], None]
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(saved.folder, attn_implementation="eager")
    routers = [each for name, each in model.named_modules() if name.endswith((".gate", ".router"))]
    assert len(routers) == sum(layer.has_experts for layer in saved.config.layers)
    for router in routers:
        change(router)
    with torch.inference_mode():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    assert kl_divergence(saved.logits, logits).max() > 3 * BOUND


def test_a_router_that_the_cpu_packs_in_eight_bits_is_beyond_it(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which multiplies activations of 8 bits."""
    load, layout = packed.load_packed, packed._layout

    def in_eight_bits(name: str, tensor: FileTensor, rows: int, floats: str) -> PackedLayout:
        is_router = name.endswith("ffn_gate_inp.weight")
        return layout(
            "matrix" if is_router else name, tensor, rows, "q8_0" if is_router else floats
        )

    monkeypatch.setattr(packed, "_layout", in_eight_bits)
    monkeypatch.setattr(
        numba_cpu,
        "load_packed",
        lambda *path, **rest: load(*path, **rest | {"cache_dir": tmp_path}),
    )
    runner = KINDS["numba"].open(saved.folder, num_blocks=3, max_step_tokens=150, max_samples=150)
    logits = teacher_forced(runner, TOKENS, (150,), table=[0, 1, 2])
    runner.close()
    assert kl_divergence(saved.logits, logits).max() > 3 * BOUND


# --- the choice itself ----------------------------------------------------------------------------

COUNT, USED, VOCAB = 32, 4, 512
CONFIG = ModelConfig(
    architecture="mixtral",
    layers=(LayerConfig(has_experts=True),),
    hidden_size=64,
    intermediate_size=32,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    vocab_size=VOCAB,
    max_context=VOCAB,
    experts=ExpertsConfig(count=COUNT, used=USED, width=32),
)
LEVELS = {"keep": (-8, 7), "q8_0": (-127, 127), "q4_1": (-8, 7), "q4_0": (-8, 7)}


def model_of(levels: tuple[int, int]) -> Weights:
    """One whose router sees the norm of an embedding alone: attention adds nothing, and embeddings
    are numbers that a format with these levels has."""
    low, high = levels
    weights, rng = random_weights(CONFIG), np.random.default_rng(0)
    embedding = rng.integers(low, high, (VOCAB, CONFIG.hidden_size), endpoint=True)
    embedding[:, ::32], embedding[:, 1::32] = low, high
    weights["token_embd.weight"] = (embedding / 64).astype(np.float32)
    weights["blk.0.attn_output.weight"][:] = 0
    return weights


def choice(
    weights: Weights,
    of: Callable[[Tensor], Tensor] = lambda x: x,
    to: Callable[[Tensor], Tensor] = lambda x: x,
) -> NDArray[np.int64]:
    """Experts of each word in float64, sorted; of rounded activations, or to rounded weights."""
    named = {name: torch.from_numpy(each).double() for name, each in weights.items()}
    x = named["token_embd.weight"]
    normed = x / (x.square().mean(-1, keepdim=True) + CONFIG.rms_norm_eps).sqrt()
    normed = of(normed * named["blk.0.ffn_norm.weight"])
    scores = normed @ to(named["blk.0.ffn_gate_inp.weight"]).T
    ordered = scores.sort(descending=True).values
    assert (ordered[:, USED - 1] - ordered[:, USED]).min() > 1e-6  # beyond float32's rounding
    return scores.topk(USED).indices.sort().values.numpy()


@pytest.mark.parametrize("floats", LEVELS)
def test_the_choice_is_that_of_floats_whatever_other_weights_are(
    tmp_path: Path, floats: str
) -> None:
    weights = model_of(LEVELS[floats])
    expected = choice(weights)
    runner = open_numba(CONFIG, weights, tmp_path, floats, tokens=VOCAB)
    teacher_forced(runner, range(VOCAB), (VOCAB,), table=range(8))
    chosen = runner._step.owned[2]["chosen"].reshape(VOCAB, USED)
    np.testing.assert_array_equal(np.sort(chosen), expected)
    runner.close()
    for rounded_choice in (choice(weights, of=rounded), choice(weights, to=rounded)):
        assert (rounded_choice != expected).any()


def test_the_choice_in_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, seen, choose = model_of(LEVELS["keep"]), list[Tensor](), experts._choose

    def choosing(config: ExpertsConfig, scores: Tensor) -> tuple[Tensor, Tensor]:
        found = choose(config, scores)
        seen.append(found[0])
        return found

    monkeypatch.setattr(experts, "_choose", choosing)
    runner = open_torch(CONFIG, weights, tmp_path, tokens=VOCAB)
    teacher_forced(runner, range(VOCAB), (VOCAB,), table=range(8))
    runner.close()
    np.testing.assert_array_equal(torch.cat(seen).sort().values, choice(weights))
