"""Streams through the whole engine, as published figures were taken; and how long the device has
nothing to do meanwhile.

A closed loop: a stream that ends is followed by the next at once. Infire's 17,224 and vLLM's 16,164
tokens a second (Llama-3.1-8B, one H100 NVL, 4,000 prompts of ShareGPT, 200 at a time) are prompts
and answers together: at 40.9 and 38.4 requests a second they are 421 tokens a request.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from statistics import NormalDist

from bench.device.gpu_batches import CHAT
from bench.device.gpu_kernels import idle_share, kernels_of
from bench.device.gpu_report import Figure
from bench.device.gpu_subject import Subject
from bench.subjects.requests import Request, SamplingParams
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine

# Logarithms' mean and deviation: 215 and 206 tokens on average, together the 421 of those figures.
# Drawn: there is no table of ShareGPT's own lengths here.
PROMPTS, ANSWERS = (4.70, 1.31), (4.95, 0.90)
LONGEST = 1024
WANTED = {"H100": 17_200.0, "H200": 25_000.0}  # tokens of prompts and answers, per second


def lengths(count: int, longest: int = LONGEST) -> list[tuple[int, int]]:
    """Return prompts' and answers' tokens, equal in every run: quantiles in a random order."""
    drawn: list[list[int]] = []
    for place, (mean, deviation) in enumerate((PROMPTS, ANSWERS)):
        normal = NormalDist(mean, deviation)
        logs = [normal.inv_cdf((index + 0.5) / count) for index in range(count)]
        one = [max(1, min(round(math.exp(log)), longest)) for log in logs]
        random.Random(place).shuffle(one)
        drawn.append(one)
    return list(zip(*drawn, strict=True))


class ClosedLoop:
    """Keeps as many streams in an engine as run at a time, while there are more."""

    def __init__(
        self,
        engine: Engine,
        wanted: list[tuple[int, int]],
        *,
        streams: int,
        vocabulary: int,
        seed: int,
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._vocabulary = vocabulary
        self._wanted = iter(enumerate(wanted))
        self._rng = random.Random(seed)  # unlike prompts: none is cached
        self.running = 0
        self.ended = 0
        self.prompt_tokens = 0  # of those that ended
        self.answer_tokens = 0
        self._prompts: dict[str, int] = {}

    def step(self) -> bool:
        """Start what has room and run a step; return whether anything was left to do."""
        while self.running < self._streams and (one := next(self._wanted, None)) is not None:
            self._start(*one)
        if not self._engine.has_work:
            return False
        for output in self._engine.step():
            self.answer_tokens += len(output.token_ids)
            if output.finish_reason is not None:
                self.running -= 1
                self.ended += 1
                self.prompt_tokens += self._prompts.pop(output.request_id)
        return True

    def _start(self, index: int, tokens: tuple[int, int]) -> None:
        prompt, answer = tokens
        ids = tuple(self._rng.randrange(self._vocabulary) for _ in range(prompt))
        style = SamplingParams(max_tokens=answer, seed=index, **CHAT)
        self._engine.add(Request(id=str(index), prompt_ids=ids, sampling=style).sequence())
        self._prompts[str(index)] = prompt
        self.running += 1


def streams(subject: Subject) -> list[Figure]:
    """Requests, and tokens of prompts and answers, per second; then a few profiled steps."""
    s = subject.sizes
    runner = subject.runner()
    config = EngineConfig(max_running=s.streams, max_step_tokens=s.prefill)
    engine = Engine(runner, config, model_key=b"bench")
    runner.warm_up(lambda what, share: None)
    wanted = lengths(s.requests, s.stream_tokens)
    sizes = {"streams": s.streams, "vocabulary": s.model.vocab_size}
    loop = ClosedLoop(engine, wanted, **sizes, seed=2)
    begun = time.perf_counter()
    while loop.step():
        pass
    seconds = time.perf_counter() - begun
    watched = ClosedLoop(engine, wanted[::-1], **sizes, seed=3)
    while watched.ended < s.streams:  # starts and ends are spread by then
        watched.step()
    idle = idle_share(
        kernels_of(lambda: [watched.step() for _ in range(s.profiled_steps)], subject.device)
    )
    engine.close()
    name = f"{s.streams} streams"
    both = (loop.prompt_tokens + loop.answer_tokens) / seconds
    goal = next((rate for card, rate in WANTED.items() if card in subject.describe()["name"]), None)
    share = least_seconds(subject, wanted) / seconds
    return [
        Figure(f"{name}, prompts and answers", both, "tok/s", wanted=goal),
        Figure(
            f"{name}, requests", loop.ended / seconds, "1/s",
            "prompts' operations and answers' bytes", share,
        ),
        Figure(f"{name}, answers", loop.answer_tokens / seconds, "tok/s"),
        Figure(f"{name}, the device idle", 100 * idle, "% of time", wanted=3.0),
    ]  # fmt: skip


def least_seconds(subject: Subject, wanted: Sequence[tuple[int, int]]) -> float:
    """Return the time in which requests (prompt, answer) could be over at the ceilings: products
    and attention of prompts, then for each answer's token its own KV and its share of the weights,
    read once for all streams."""
    operations = sum(subject.prefill_operations(prompt) for prompt, _ in wanted)
    read = sum(answer * prompt + answer * (answer - 1) // 2 for prompt, answer in wanted)
    answers = sum(answer for _, answer in wanted)
    num_bytes = subject.kv_bytes(read) + subject.weight_bytes() * answers / subject.sizes.streams
    return operations / subject.product_rate + num_bytes / subject.copy_rate
