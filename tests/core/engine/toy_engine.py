"""Engines on the toy model, and requests in every style of sampling."""

from __future__ import annotations

from typing import Any

from bench.subjects.requests import Request
from tests.core.toy_oracle import Answer, request, run

from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.toy import ToyRunner

PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.25,
}
SAMPLED: dict[str, Any] = {
    "temperature": 1.5,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.01,
    "typical_p": 0.97,
    "seed": 7,
    **PENALTIES,
}
STYLES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": SAMPLED,
    "penalised": PENALTIES,
    "logprobs": {"logprobs": 3, "prompt_logprobs": 2},
    "biased": {"logit_bias": ((3, 50.0), (4, -7.5), (3, 1.0)), "logprobs": 0},
    "stops late": {"temperature": 2.0, "stop_token_ids": tuple(range(0, 250)), "min_tokens": 7},
}


def make_engine(
    *,
    num_blocks: int = 64,
    max_running: int = 64,
    max_step_tokens: int = 512,
    max_samples: int = 64,
    max_waiting: int = 1024,
    max_context: int = 4096,
) -> Engine:
    runner = ToyRunner(num_blocks=num_blocks, max_samples=max_samples, max_context=max_context)
    config = EngineConfig(
        max_running=max_running, max_step_tokens=max_step_tokens, max_waiting=max_waiting
    )
    return Engine(runner, config, model_key=b"toy")


def run_one(engine: Engine, request: Request) -> Answer:
    engine.add(request.sequence())
    return run(engine)[request.id]


def mixed_requests() -> list[Request]:
    return [
        request(f"{style} {length}", length, salt=length, max_tokens=15, tenant=style, **fields)
        for style, fields in STYLES.items()
        for length in (3, 64, 100)
    ]
