"""Every family of decoders as transformers saves it, on every back end: the same logits.

All parameters are random, norms and biases too. What a back end lacks it refuses by name; that
what a model has beyond a plain Llama matters is shown in `test_features_matter`.

`python -m tests.core.runners.test_families` prints the table of families, runners and formats.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.core.random_models import (
    Weights,
    quantize_matrices,
    random_weights,
    write_gguf,
)
from tests.core.reference_model import kl_divergence
from tests.core.runners.family_table import FAMILIES
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import KINDS
from tests.core.runners.saved_family import TOKENS, Saved, save
from transformers import AutoModelForCausalLM

from skerry_core.batch import Float32
from skerry_core.config import FEATURES, BackEnd, ConfigError, ModelConfig
from skerry_core.models.registry import UnknownFamily, family_of
from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.gguf import GGUF_FORMATS

BACK_ENDS: dict[str, BackEnd] = {
    "numba": "numba", "torch": "torch", "torch deterministic": "torch", "jax": "jax",
}  # fmt: skip
MOST_KL = {"numba": 1e-5}  # nats, of each token: weights are not quantised, KV is in float16
LESS_KL = 1e-8  # where everything is in float32
SIZES = {"num_blocks": 6, "max_step_tokens": 128, "max_samples": 128}

# XLA compiles programs for each model: these have every feature that JAX has, and refuse one.
IN_JAX = (
    "smollm3",
    "gemma2",
    "gemma3",
    "granite",
    "olmo2",
    "mixtral",
    "phi3, a part of each head and LongRoPE",
)


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    return save(FAMILIES[request.param], tmp_path_factory.mktemp("family"))


def test_an_expert_is_used_by_no_token(saved: Saved) -> None:
    """By what transformers' routers choose."""
    if saved.config.experts is None:
        pytest.skip("no experts")
    model: Any = AutoModelForCausalLM.from_pretrained(saved.folder)
    with torch.inference_mode():
        routers = model(torch.tensor([TOKENS]), output_router_logits=True).router_logits
    experts = saved.config.experts
    used = [set(each.topk(experts.used).indices.flatten().tolist()) for each in routers]
    assert experts.used < min(map(len, used)) < experts.count >= 8


@pytest.mark.parametrize("kind", [each for each in BACK_ENDS if each != "jax"])
def test_what_transformers_saves_is_what_is_run(saved: Saved, kind: str) -> None:
    check_run(saved, kind)


@pytest.mark.parametrize("saved", IN_JAX, indirect=True)
def test_what_transformers_saves_is_what_is_run_in_jax(saved: Saved) -> None:
    check_run(saved, "jax")


@pytest.mark.slow
@pytest.mark.parametrize("saved", [each for each in FAMILIES if each not in IN_JAX], indirect=True)
def test_what_transformers_saves_is_what_is_run_in_jax_too(saved: Saved) -> None:
    check_run(saved, "jax")


def check_run(saved: Saved, kind: str) -> None:
    """In chunks, over blocks that are not in order."""
    features = sorted(saved.config.features)
    if lacking := [each for each in features if BACK_ENDS[kind] not in FEATURES[each].back_ends]:
        with pytest.raises(ConfigError, match=f"needs {', '.join(lacking)}: not supported by"):
            KINDS[kind].open(saved.folder, **SIZES)
        return
    runner = KINDS[kind].open(saved.folder, **SIZES)
    logits = teacher_forced(runner, TOKENS, (100, 1, 49), table=[5, 0, 3])
    runner.close()
    check_close(saved, logits, kind)


def check_close(saved: Saved, logits: Float32, kind: str) -> None:
    assert kl_divergence(saved.logits, logits).max() < MOST_KL.get(kind, LESS_KL)


@pytest.mark.parametrize("kind", ["numba", "torch"])
def test_gguf_says_the_same(saved: Saved, tmp_path: Path, kind: str) -> None:
    """Tensors under llama.cpp's names; what GGUF does not state is the family's own."""
    family = saved.family
    if family.arch is None:
        pytest.skip("GGUF cannot state it, or it is stated for its 8,192 tokens only")
    path = write_gguf(
        tmp_path / "m.gguf", saved.config, as_converted(saved), metadata=family.metadata
    )
    with WeightFile.open(path) as file:
        read = [(each.rope is None, each.window) for each in file.config.layers]
        assert read == [(each.rope is None, each.window) for each in saved.config.layers]
    runner = KINDS[kind].open(path, num_blocks=3, max_step_tokens=150, max_samples=150)
    logits = teacher_forced(runner, TOKENS, (150,), table=[0, 1, 2])
    runner.close()
    check_close(saved, logits, kind)


def as_converted(saved: Saved) -> Weights:
    """A model's tensors as llama.cpp's converter writes them, Llama's order of rows apart."""
    assert saved.family.arch is not None
    names = gguf.get_tensor_name_map(saved.family.arch, saved.config.num_layers)
    weights: Weights = {}
    for name, values in _experts_stacked(load_file(saved.folder / "model.safetensors")).items():
        if name.startswith("blk."):
            weights[name] = values
            continue
        module, _, kind = name.rpartition(".")
        is_gemma_norm = saved.family.model_type.startswith("gemma") and "norm" in name
        weights[f"{names.get_name(module)}.{kind}"] = values + 1 if is_gemma_norm else values
    for length in ("long", "short"):
        if divisors := saved.family.fields.get("rope_scaling", {}).get(f"{length}_factor"):
            weights[f"rope_factors_{length}.weight"] = np.array(divisors, np.float32)
    return weights


def _experts_stacked(tensors: Weights) -> Weights:
    """Stack experts, and take gates and ups apart, under llama.cpp's names."""
    parts = {"w1": "gate", "gate_proj": "gate", "w3": "up", "up_proj": "up", "w2": "down"}
    parts |= {"down_proj": "down"}
    stacked: Weights = {}
    for name, values in tensors.items():
        if match := re.fullmatch(r"model\.layers\.(\d+)\..*experts\.(\d+)\.(\w+)\.weight", name):
            ours = f"blk.{match[1]}.ffn_{parts[match[3]]}_exps.weight"
            number = int(match[2])  # files name them in the order of text: 10 would be before 2
            stacked.setdefault(
                ours, np.zeros((len(_numbers(tensors, match[1])), *values.shape), np.float32)
            )
            stacked[ours][number] = values
        elif match := re.fullmatch(
            r"model\.layers\.(\d+)\..*experts\.(gate_up|down)_proj(_bias)?", name
        ):
            kind = "bias" if match[3] else "weight"
            values = values if match[3] else np.ascontiguousarray(values.swapaxes(1, 2))
            halves = {"down": values}
            if match[2] == "gate_up":
                halves = {"gate": values[:, ::2], "up": values[:, 1::2]}
            for half, own in halves.items():
                stacked[f"blk.{match[1]}.ffn_{half}_exps.{kind}"] = np.ascontiguousarray(own)
        elif match := re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.sinks", name):
            stacked[f"blk.{match[1]}.attn_sinks.weight"] = values
        else:
            stacked[name] = values
    return stacked


def _numbers(tensors: Weights, layer: str) -> set[str]:
    """The numbers of a layer's experts."""
    pattern = rf"model\.layers\.{layer}\..*experts\.(\d+)\..*"
    found = (re.fullmatch(pattern, name) for name in tensors)
    return {match[1] for match in found if match}


# --- the table -----------------------------------------------------------------------------------

REFUSED = ("deepseek_v3", "qwen3_next", "granitemoehybrid", "llama4", "apertus", "falcon", "t5")


def print_table(folder: Path) -> None:
    """Print KL against transformers, the largest of any token, of every family and runner."""
    in_gguf = [f"{kind}, GGUF" for kind in ("numba", "torch")]
    refused = dict[str, str]()
    say(f"{'family':45}{''.join(f'{kind:>22}' for kind in [*BACK_ENDS, *in_gguf])}")
    for name, family in FAMILIES.items():
        own = folder / f"{len(list(folder.iterdir()))}"
        own.mkdir()
        saved = save(family, own)
        found = [_kl(saved, saved.folder, kind) for kind in BACK_ENDS]
        if family.arch is None:
            found += ["-", "-"]
        else:
            weights = as_converted(saved)
            path = write_gguf(own / "m.gguf", saved.config, weights, metadata=family.metadata)
            found += [_kl(saved, path, kind) for kind in ("numba", "torch")]
        say(f"{name:45}{''.join(f'{each:>22}' for each in found)}")
        for kind, back_end in BACK_ENDS.items():
            if lacking := _refusal(saved.config, back_end):
                refused[f"{name}, {kind}"] = lacking
    for what, message in refused.items():
        say(f"{what:45}{message}")
    for model_type in REFUSED:
        try:
            family_of(model_type)
        except UnknownFamily as error:
            say(f"{model_type:45}{error}")


def print_formats(folder: Path) -> None:
    """Print the same of a Llama in every format of GGUF, against transformers on that file: what
    is beyond rounding is 8-bit activations."""
    from tests.core.cpu.test_numba_models import TOKENS as SHORT
    from tests.core.cpu.test_numba_models import WIDE, gguf_by_transformers

    say(f"\n{'format of GGUF':45}{''.join(f'{kind:>22}' for kind in BACK_ENDS)}")
    weights = random_weights(WIDE)
    for format_ in gguf.GGMLQuantizationType:
        path = folder / f"{format_.name}.gguf"
        if format_.name not in GGUF_FORMATS:
            continue
        write_gguf(path, WIDE, weights, quantize_matrices(format_.name))
        expected = gguf_by_transformers(path, WIDE.head_dim)
        found = []
        for kind in BACK_ENDS:
            runner = KINDS[kind].open(path, **SIZES)
            logits = teacher_forced(runner, SHORT, (100, len(SHORT) - 100), table=[5, 0, 3])
            runner.close()
            found.append(f"{kl_divergence(expected, logits).max():.1e}")
        say(f"{format_.name:45}{''.join(f'{each:>22}' for each in found)}")
    refused = [each.name for each in gguf.GGMLQuantizationType if each.name not in GGUF_FORMATS]
    say(f"refused when a model is added: {', '.join(refused)}")


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _refusal(config: ModelConfig, back_end: BackEnd) -> str | None:
    """What a back end says to a model that it cannot run."""
    try:
        config.check_features(back_end)
    except ConfigError as error:
        return str(error)
    return None


def _kl(saved: Saved, path: Path, kind: str) -> str:
    if _refusal(saved.config, BACK_ENDS[kind]):
        return "refused, below"
    runner = KINDS[kind].open(path, **SIZES)
    logits = teacher_forced(runner, TOKENS, (100, 1, 49), table=[5, 0, 3])
    runner.close()
    return f"{kl_divergence(saved.logits, logits).max():.1e}"


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        print_table(Path(temporary))
        print_formats(Path(temporary))
