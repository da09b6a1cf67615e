"""What the toy model must answer, worked out without an engine, a batch or a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from bench.subjects.requests import Reasoning, Request, SamplingParams
from bench.subjects.samples import samples_of
from tests.core.kv.sane_pools import check_pool

from skerry_core.batch import SamplingBatch
from skerry_core.engine.engine import Engine
from skerry_core.reasoning_budget import Mark
from skerry_core.request import EngineUsage, FinishReason, Output, TokenLogprob
from skerry_core.sampling import PARAMETERS, sample

VOCAB = 257


def next_token(tokens: list[int]) -> int:
    return sum((i + 1) * t for i, t in enumerate(tokens)) % VOCAB


def logits(tokens: list[int]) -> np.ndarray:
    expected = next_token(tokens)
    return np.array([[-((v - expected) % VOCAB) for v in range(VOCAB)]], np.float32)


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def forced_token(limit: Reasoning, output: list[int]) -> int | None:
    """What a limit of reasoning makes the next token, looked for in the whole output."""
    written, left = "".join(map(chr, output)), limit.max_tokens
    while True:
        if limit.begins:
            if (size := shortest(limit.begins, written)) is None:
                return None
            written = written[size:]
        size = shortest(limit.ends, written[:left])
        if size is not None:
            written, left = written[size:], left - size + 1
        elif (beyond := len(written) - left) < 0:
            return None
        elif beyond < len(limit.end_ids):
            return limit.end_ids[beyond]
        else:
            written, left = written[left + len(limit.end_ids) :], 0
        if not limit.begins:
            return None


def shortest(marks: Iterable[Mark], written: str) -> int | None:
    """The length of the shortest beginning that has one of the marks in it."""
    texts = [mark if isinstance(mark, str) else "".join(map(chr, mark)) for mark in marks]
    ends = [written.index(text) + len(text) for text in texts if text in written]
    return min(ends, default=None)


def sampling_batch(request: Request, output: list[int], target: int = -1) -> SamplingBatch:
    """One sample, its history counted afresh; `target` >= 0 asks for a prompt token's logprobs."""
    s = request.sampling
    counts = Counter(output)
    history = sorted({*request.prompt_ids, *output})
    biases: dict[int, float] = {}
    for token_id, value in s.logit_bias:
        biases[token_id] = biases.get(token_id, 0.0) + value
    if len(output) < s.min_tokens:
        biases |= dict.fromkeys(s.stop_token_ids, -np.inf)
    k = s.logprobs if target < 0 else request.prompt_logprobs
    return samples_of(
        1,
        position=len(request.prompt_ids) + len(output),
        seed=s.seed,
        choice=s.choice,
        num_logprobs=-1 if k is None else k,
        target=target,
        **{name: getattr(s, name) for name in PARAMETERS},
        history_start=i32(0, len(history)),
        history_ids=i32(*history),
        history_counts=i32(*(counts[t] for t in history)),
        bias_start=i32(0, len(biases)),
        bias_ids=i32(*biases),
        bias_values=np.array([*biases.values()], np.float32),
    )


@dataclass
class Answer:
    """All outputs of a request, joined."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    usage: EngineUsage | None = field(default=None, compare=False)

    def add(self, output: Output) -> None:
        assert self.finish_reason is None, "an output after the last one"
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs
        self.finish_reason, self.usage = output.finish_reason, output.usage


@cache
def expected(request: Request) -> Answer:
    """The undisturbed answer, `output_ids` included."""
    answer = Answer()
    prompt = list(request.prompt_ids)
    if request.prompt_logprobs is not None:
        for i in range(1, len(prompt)):
            batch = sampling_batch(request, [], target=prompt[i])
            answer.prompt_logprobs.append(told(prompt[:i], batch))
    s = request.sampling
    while answer.finish_reason is None:
        tokens = prompt + answer.token_ids
        batch = sampling_batch(request, answer.token_ids)
        token_id = int(sample(logits(tokens), batch).token_ids[0])
        limit = request.reasoning
        forced = None if limit is None else forced_token(limit, answer.token_ids)
        if forced is not None:
            token_id = forced
            batch.samples["target"] = forced
        if s.logprobs is not None:
            answer.logprobs.append(told(tokens, batch))
        answer.token_ids.append(token_id)
        if token_id in s.stop_token_ids and len(answer.token_ids) > s.min_tokens:
            answer.finish_reason = "stop"
        elif len(answer.token_ids) == s.max_tokens:
            answer.finish_reason = "length"
    return answer


def told(tokens: list[int], batch: SamplingBatch) -> TokenLogprob:
    result = sample(logits(tokens), batch)
    top = zip(result.top_ids[0].tolist(), result.top_logprobs[0].tolist(), strict=True)
    return float(result.logprobs[0]), list(top)


def prompt(length: int, salt: int = 0) -> tuple[int, ...]:
    return tuple((salt * 31 + i * i * 7 + 13) % VOCAB for i in range(length))


def request(id: str = "r", prompt_length: int = 10, salt: int = 0, **fields: Any) -> Request:
    """A request; fields of `SamplingParams` and of `Request` alike."""
    own: dict[str, Any] = {
        name: fields.pop(name) for name in list(fields) if name in Request.__slots__
    }
    defaults: dict[str, Any] = {"id": id, "prompt_ids": prompt(prompt_length, salt)}
    return Request(**{**defaults, **own}, sampling=SamplingParams(**fields))


def run(engine: Engine, max_steps: int = 10_000) -> dict[str, Answer]:
    """Step until nothing is left; the answers by request id. The pool must be whole then."""
    answers: dict[str, Answer] = {}
    while engine.has_work:
        assert max_steps > 0, "stuck"
        max_steps -= 1
        for output in engine.step():
            answers.setdefault(output.request_id, Answer()).add(output)
        check_pool(engine.pool)
    assert engine.pool.num_used == 0
    return answers


def names_of(engine: Engine, request: Request) -> list[bytes]:
    """What the blocks are called that a cache may have for a request."""
    return request.sequence().prefix_digests(engine._names)
