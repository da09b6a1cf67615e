"""What the tests of runners share: kinds of runners, small models, engines."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypedDict, Unpack, cast

import numpy as np
import torch
from bench.subjects.requests import Request, SamplingParams
from tests.core.open_runners import open_on_jax, open_on_torch
from tests.core.random_models import (
    LLAMA3_JSON,
    alike,
    random_weights,
    scaled_rope,
    write_gguf,
    write_safetensors,
)
from tests.core.reference_model import ReferenceModel
from tests.core.toy_oracle import Answer, run

from skerry_core.batch import Float32, ForwardBatch
from skerry_core.config import EngineConfig, LayerConfig, ModelConfig
from skerry_core.engine.engine import Engine
from skerry_core.models.weight_file import WeightFile
from skerry_core.runner import ModelRunner
from skerry_core.runners.toy import ToyRunner, next_token

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("SKERRY_TEST_HOME", ROOT / ".cache" / "skerry")) / "cache"

VOCAB, MAX_CONTEXT = 131, 512
_SMALL = ModelConfig(
    architecture="llama",
    layers=(LayerConfig(),) * 2,
    hidden_size=64,
    intermediate_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=VOCAB,
    max_context=MAX_CONTEXT,
)
MODELS = {
    "llama": replace(alike(_SMALL, rope=scaled_rope(LLAMA3_JSON, 16, theta=10_000.0)), num_heads=6),
    "qwen2": replace(_SMALL, architecture="qwen2", attention_bias=True, num_kv_heads=1),
    "qwen3": replace(
        _SMALL, architecture="qwen3", qk_norm="head", head_dim=48, tied_embeddings=False
    ),
    "smollm3": replace(
        _SMALL, architecture="smollm3", layers=(LayerConfig(), LayerConfig(rope=None))
    ),
    "mistral": replace(
        alike(_SMALL, window=70), architecture="mistral", num_kv_heads=4, tied_embeddings=False
    ),
}


def write_model(folder: Path, name: str) -> Path:
    """One of `MODELS`: Llama and Qwen as GGUF, what has more to say in JSON as safetensors."""
    config, weights = MODELS[name], random_weights(MODELS[name], seed=len(name))
    if name == "qwen2":
        return write_gguf(folder / f"{name}.gguf", config, weights)
    folder = folder / name
    folder.mkdir()
    return write_safetensors(folder, config, weights)


class LogitsOf(Protocol):
    """What a runner is compared with."""

    def logits(self, token_ids: Sequence[int]) -> Float32:
        """f32[T, V]: row t is the prediction of token t + 1."""
        ...


class ToyReference:
    """`ToyRunner`'s model, without blocks."""

    def logits(self, token_ids: Sequence[int]) -> Float32:
        rows = [next_token(np.array(token_ids[: t + 1]), VOCAB) for t in range(len(token_ids))]
        distance = (np.arange(VOCAB) - np.array(rows)[:, None]) % VOCAB
        return -distance.astype(np.float32)


def reference(path: Path) -> ReferenceModel:
    with WeightFile.open(path) as file:
        return ReferenceModel(file)


class StepRunner(Protocol):
    """What comparing logits needs of a `ModelRunner`."""

    def execute(self, batch: ForwardBatch) -> object: ...
    def last_logits(self) -> Float32: ...


class Sizes(TypedDict):
    num_blocks: int
    max_step_tokens: int
    max_samples: int


@dataclass(frozen=True)
class Kind:
    """A kind of runner, and how near its logits, of order 1, come to the fp32 reference's."""

    open: Callable[..., ModelRunner]  # of a weight file's path and `Sizes`
    models: tuple[str, ...]
    atol: float
    batch_invariant: bool


def open_toy(weights: Path, **sizes: Unpack[Sizes]) -> ModelRunner:
    return ToyRunner(vocab_size=VOCAB, max_context=MAX_CONTEXT, **sizes)


def open_numba(weights: Path, **sizes: Unpack[Sizes]) -> ModelRunner:
    from skerry_core.runners.numba_cpu import NumbaRunner

    return NumbaRunner.open(weights, threads=1, cache_dir=CACHE, floats="keep", **sizes)


def open_stages(weights: Path, **sizes: Unpack[Sizes]) -> ModelRunner:
    from tests.core.pipeline.stage_threads import open_pipeline

    return open_pipeline(weights, CACHE, 2, **cast(dict[str, int], sizes))


def open_torch(weights: Path, **sizes: Unpack[Sizes]) -> ModelRunner:
    return open_on_torch(weights, threads=1, device="cpu", **sizes)


def open_deterministic_torch(weights: Path, **sizes: Unpack[Sizes]) -> ModelRunner:
    return open_on_torch(weights, threads=1, device="cpu", deterministic=True, **sizes)


def open_cuda(weights: Path, **sizes: Unpack[Sizes]) -> ModelRunner:
    return open_on_torch(weights, threads=1, device="cuda", dtype=torch.float32, **sizes)


def open_deterministic_cuda(weights: Path, **sizes: Unpack[Sizes]) -> ModelRunner:
    return open_on_torch(
        weights, threads=1, device="cuda", dtype=torch.float32, deterministic=True, **sizes
    )


def open_jax(weights: Path, **sizes: Unpack[Sizes]) -> ModelRunner:
    return open_on_jax(weights, threads=1, cache_dir=CACHE, **sizes)


# The CPU kernels keep KV in float16, the others all in float32.
KINDS = {
    "toy": Kind(open_toy, ("toy",), 1e-6, True),
    "numba": Kind(open_numba, tuple(MODELS), 5e-3, True),
    "numba in stages": Kind(open_stages, ("smollm3", "qwen2"), 5e-3, True),
    "torch": Kind(open_torch, tuple(MODELS), 2e-5, False),
    "torch deterministic": Kind(open_deterministic_torch, tuple(MODELS), 2e-5, True),
    "jax": Kind(open_jax, tuple(MODELS), 2e-5, False),
}
if torch.cuda.is_available():
    KINDS["torch cuda"] = Kind(open_cuda, tuple(MODELS), 2e-4, False)
    KINDS["torch cuda deterministic"] = Kind(open_deterministic_cuda, tuple(MODELS), 2e-4, True)


def random_tokens(length: int, seed: int = 0, vocab_size: int = VOCAB) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(0, vocab_size, length).tolist()
    return tokens


def engine_over(runner: ModelRunner, max_step_tokens: int = 512) -> Engine:
    return Engine(runner, EngineConfig(max_step_tokens=max_step_tokens), model_key=b"random")


def answers_of(engine: Engine, requests: Sequence[Request]) -> dict[str, Answer]:
    for request in requests:
        engine.add(request.sequence())
    return run(engine)


def requests_with_shared_prefix(count: int = 6, max_tokens: int = 12) -> list[Request]:
    """Prompts of 20 to 150 tokens; the longer ones start alike. Two tell their logprobs."""
    shared = random_tokens(80, seed=99)
    return [
        Request(
            id=f"r{i}",
            prompt_ids=tuple((shared if i % 2 else []) + random_tokens(20 + 10 * i, seed=i)),
            sampling=SamplingParams(max_tokens=max_tokens, logprobs=2 if i == 1 else None),
            prompt_logprobs=1 if i == 2 else None,
        )
        for i in range(count)
    ]


def requests_that_outgrow_five_blocks(**sampling: Any) -> list[Request]:
    """Four prompts that fit a block each, whose answers do not."""
    style = SamplingParams(max_tokens=25, **sampling)
    prompts = [tuple(random_tokens(50, seed=i)) for i in range(4)]
    return [Request(id=str(i), prompt_ids=p, sampling=style) for i, p in enumerate(prompts)]


def check_greedy(model: LogitsOf, request: Request, answer: Answer, atol: float) -> None:
    """Every token is the reference's favourite within `atol`, every logprob is its own."""
    tokens = [*request.prompt_ids, *answer.token_ids]
    logits = model.logits(tokens)
    first = len(request.prompt_ids)
    assert len(answer.token_ids) == request.sampling.max_tokens
    for i, token in enumerate(answer.token_ids, first):
        assert logits[i - 1].max() - logits[i - 1, token] <= atol, (request.id, i)
    shifted = logits - logits.max(-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    for i, (logprob, _) in enumerate(answer.logprobs, first):
        assert abs(logprob - logprobs[i - 1, tokens[i]]) <= 2 * atol
    if request.prompt_logprobs is not None:
        assert len(answer.prompt_logprobs) == first - 1
    for i, (logprob, _) in enumerate(answer.prompt_logprobs, 1):
        assert abs(logprob - logprobs[i - 1, tokens[i]]) <= 2 * atol
