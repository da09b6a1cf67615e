"""What a family has beyond a plain Llama matters on every back end: without it logits are others.

So a back end that leaves a feature out cannot pass `test_families`, which holds all of them to the
same bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.core.random_embedders import EMBEDDERS
from tests.core.random_models import alike
from tests.core.reference_model import kl_divergence
from tests.core.runners.family_table import FAMILIES
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import CACHE, Sizes
from tests.core.runners.saved_family import TOKENS, Saved, config_of, save

from skerry_core.batch import Float32
from skerry_core.blocks import blocks_for
from skerry_core.config import FEATURES, BackEnd, ModelConfig
from skerry_core.kernels.jax import weights as jax_weights
from skerry_core.kernels.simd.targets import choose_target, name_of
from skerry_core.kernels.torch.decoder import assemble
from skerry_core.models.loading import read_decoder
from skerry_core.models.tensor_names import expected_shapes
from skerry_core.models.weight_file import WeightFile
from skerry_core.runner import ModelRunner
from skerry_core.runners.compilation import DECODER_KERNELS
from skerry_core.runners.jax.jax_process import mesh_of
from skerry_core.runners.jax.jax_runner import JaxRunner
from skerry_core.runners.kernel_cache import load_kernels
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_core.runners.packing.packed import load_packed
from skerry_core.runners.torch.torch_runner import TorchRunner
from skerry_core.weights.tensors import FileTensor

Tensors = Mapping[str, Float32]
BOUND = 3e-5  # nats: three times what `test_families` lets any token of any back end differ by

WITHOUT: dict[str, Callable[[ModelConfig], ModelConfig]] = {
    "biases of q, k and v": lambda c: replace(c, attention_bias=False),
    "a bias of attention's output": lambda c: replace(c, output_bias=False),
    "norms of the heads of q and k": lambda c: replace(c, qk_norm=None),
    "norms across the heads of q and k": lambda c: replace(c, qk_norm=None),
    "norms after each branch": lambda c: replace(c, norms_after=False),
    "branches without a norm before them": lambda c: replace(c, norms_before=True),
    "GELU": lambda c: replace(c, activation="silu"),
    "a clamped activation": lambda c: replace(c, activation="silu"),
    "scaled rotary embeddings": lambda c: replace(
        c,
        layers=tuple(
            replace(each, rope=each.rope and replace(each.rope, multipliers=(), amplitude=1.0))
            for each in c.layers
        ),
    ),
    "rotary embeddings of a part of each head": lambda c: alike(
        replace(c, rotary_dim=None, layers=alike(c, rope=None).layers), rope=type(c.ropes[0])()
    ),
    "layers without rotary embeddings": lambda c: alike(c, rope=c.ropes[0]),
    "rotary embeddings that differ by layer": lambda c: alike(c, rope=c.ropes[0]),
    "a sliding window": lambda c: alike(c, window=None),
    "sliding windows that differ by layer": lambda c: alike(c, window=45),
    "an attention scale of its own": lambda c: replace(c, attention_scale=None),
    "capped scores": lambda c: replace(c, score_cap=None),
    "capped logits": lambda c: replace(c, logit_cap=None),
    "attention sinks": lambda c: replace(c, attention_sinks=False),
    "scaled embeddings": lambda c: replace(c, embedding_scale=1.0),
    "scaled branches": lambda c: replace(c, residual_scale=1.0),
    "scaled logits": lambda c: replace(c, logit_scale=1.0),
}


def without_parts_of_experts(config: ModelConfig) -> dict[str, ModelConfig]:
    """Configurations without something of how experts are chosen, weighted and computed."""
    if (experts := config.experts) is None:
        return {}
    changed = {
        "an expert of each token": replace(experts, used=experts.used - 1),
        "over what scores are weighed": replace(experts, weighs_chosen=not experts.weighs_chosen),
    }
    if experts.has_biases:
        changed["biases of experts"] = replace(experts, has_biases=False)
    return {name: replace(config, experts=each) for name, each in changed.items()}


def without(config: ModelConfig) -> dict[str, ModelConfig]:
    """Configurations without something that this one has, by its name."""
    changed = {name: change(config) for name, change in WITHOUT.items() if name in config.features}
    every = changed | without_parts_of_experts(config)
    # As written for GGUF a scale may be what it would be anyway.
    return {name: each for name, each in every.items() if each != config}


# --- back ends over a configuration and tensors ---------------------------------------------------


def sizes(tokens: int) -> Sizes:
    return {
        "num_blocks": blocks_for(tokens), "max_step_tokens": tokens, "max_samples": tokens,
    }  # fmt: skip


def open_numba(
    config: ModelConfig, tensors: Tensors, folder: Path, floats: str = "keep", tokens: int = 150
) -> NumbaRunner:
    """Packed like the floats of a file."""
    target = choose_target()
    load_kernels(DECODER_KERNELS, name_of(target), CACHE, lambda what, share: None)
    held = {
        name: FileTensor("F32", values.shape, values.reshape(-1).view(np.uint8))
        for name, values in tensors.items()
    }
    (folder / "changed.gguf").write_bytes(b"")  # which names what is packed
    with pytest.MonkeyPatch.context() as patch:
        file = WeightFile(config, held, is_safetensors=False)
        patch.setattr(WeightFile, "open", lambda path: file)
        packed = load_packed(
            folder / "changed.gguf", group_rows=target.rows, floats=floats, cache_dir=folder,
            progress=lambda what, share: None,
        )  # fmt: skip
    return NumbaRunner(packed, target, threads=1, **sizes(tokens))


def open_torch(
    config: ModelConfig, tensors: Tensors, folder: Path, tokens: int = 150
) -> TorchRunner:
    held: dict[str, Any] = {name: torch.from_numpy(values) for name, values in tensors.items()}
    return TorchRunner(config, assemble(config, held), threads=1, **sizes(tokens))


def open_jax(config: ModelConfig, tensors: Tensors, folder: Path) -> ModelRunner:
    mesh = mesh_of(1)
    placed = jax_weights.join([jax_weights.assemble(config, dict(tensors))], mesh)
    return JaxRunner(config, placed, mesh=mesh, cache_dir=CACHE, **sizes(150))


OPEN: dict[BackEnd, Callable[[ModelConfig, Tensors, Path], ModelRunner]] = {
    "numba": open_numba, "torch": open_torch, "jax": open_jax,
}  # fmt: skip


def divergence(
    saved: Saved, config: ModelConfig, back_end: BackEnd, tensors: Tensors, folder: Path
) -> float:
    """KL of the saved model's logits from those of another configuration, the largest of any
    token. Norms that the model has not are ones; tensors that are not called for are left out."""
    folder.mkdir()
    wanted = expected_shapes(config)
    held = {name: tensors.get(name, np.ones(wanted[name], np.float32)) for name in wanted}
    runner = OPEN[back_end](config, held, folder)
    logits = teacher_forced(runner, TOKENS, (150,), table=[0, 1, 2])
    runner.close()
    return float(kl_divergence(saved.logits, logits).max())


def runs(config: ModelConfig, back_end: BackEnd) -> bool:
    return all(back_end in FEATURES[each].back_ends for each in config.features)


# --- what is shown --------------------------------------------------------------------------------


def test_every_feature_is_of_a_family_that_is_compared_on_every_back_end_that_has_it() -> None:
    """And can be switched off below."""
    assert set(WITHOUT) == set(FEATURES) - {"experts", "attention in both directions"}
    configs = [config_of(family) for family in FAMILIES.values()]
    for back_end in OPEN:
        compared = {each for c in configs if runs(c, back_end) for each in c.features}
        assert compared == {name for name, each in FEATURES.items() if back_end in each.back_ends}
    embed = {each for e in EMBEDDERS.values() for each in e.config}
    assert "use_bidirectional_attention" in embed  # of models that embed alone
    assert FEATURES["attention in both directions"].back_ends == ()


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return save(FAMILIES[request.param], tmp_path_factory.mktemp("family"))


def check(saved: Saved, back_end: BackEnd, folder: Path) -> None:
    config, tensors, _ = read_decoder(saved.folder, np.asarray, back_end)
    assert divergence(saved, config, back_end, tensors, folder / "whole") < BOUND / 3
    for number, (name, changed) in enumerate(without(config).items()):
        found = divergence(saved, changed, back_end, tensors, folder / str(number))
        assert found > BOUND, name


@pytest.mark.parametrize("back_end", ["numba", "torch"])
def test_every_feature_matters(saved: Saved, back_end: BackEnd, tmp_path: Path) -> None:
    check(saved, back_end, tmp_path)


@pytest.mark.slow
def test_every_feature_matters_in_jax(saved: Saved, tmp_path: Path) -> None:
    """Each change is another program to compile."""
    if not runs(saved.config, "jax"):
        pytest.skip("JAX refuses it, as `test_families` shows")
    check(saved, "jax", tmp_path)
