"""Skerry's engine as a benchmark worker: scheduler, step, sampling and outputs, all timed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from skerry_core.config import EngineConfig
from skerry_core.engine import Engine
from skerry_core.request import Request, SamplingParams
from skerry_core.runners.numba_cpu import NumbaRunner

SAMPLING = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=4096),
    "top_p 0.95": SamplingParams(temperature=1.0, top_p=0.95, seed=1, max_tokens=4096),
}


BARE = EngineConfig(max_running=64, max_draft_tokens=0)  # a step is a token of every stream


class Bench:
    def __init__(self, weights: Path, cache: Path, threads: int) -> None:
        start = time.perf_counter()
        runner = NumbaRunner.open(
            weights, num_blocks=33 * 10, max_samples=64, threads=threads, cache_dir=cache
        )
        runner.warm_up(lambda _what, _share: None)
        self.load_seconds = time.perf_counter() - start
        self.engine = Engine(runner, BARE, model_key=b"bench")
        self._count = 0

    def add(self, prompt: list[int], sampling: SamplingParams) -> str:
        """Start one request under a cache key of its own: a bench never profits from another."""
        self._count += 1
        name = str(self._count)
        key = name.encode()
        self.engine.add(
            Request(id=name, prompt_ids=tuple(prompt), sampling=sampling, cache_key=key)
        )
        return name

    def prefill(self, prompts: list[list[int]], sampling: str) -> float:
        """Seconds from handing over the prompt to its first token."""
        start = time.perf_counter()
        name = self.add(prompts[0], SAMPLING[sampling])
        while not any(output.token_ids for output in self.engine.step()):
            pass
        seconds = time.perf_counter() - start
        self.engine.abort(name)
        self._drain()
        return seconds

    def decode(self, prompts: list[list[int]], steps: int, sampling: str) -> float:
        """Seconds of `steps` steps with every prompt decoding."""
        names = [self.add(prompt, SAMPLING[sampling]) for prompt in prompts]
        started: set[str] = set()
        while len(started) < len(names):
            started.update(o.request_id for o in self.engine.step() if o.token_ids)
        self.engine.step()
        start = time.perf_counter()
        tokens = 0
        for _ in range(steps):
            tokens += sum(len(output.token_ids) for output in self.engine.step())
        seconds = time.perf_counter() - start
        for name in names:
            self.engine.abort(name)
        self._drain()
        if tokens != steps * len(names):
            raise RuntimeError(f"expected {steps * len(names)} tokens, got {tokens}")
        return seconds

    def _drain(self) -> None:
        while self.engine.has_work:
            self.engine.step()


def main() -> None:
    weights, cache, threads = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    bench = Bench(weights, cache, threads)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        sampling = request.get("sampling", "greedy")
        match request["op"]:
            case "prefill":
                answer = {"seconds": bench.prefill(request["prompts"], sampling)}
            case "decode":
                answer = {"seconds": bench.decode(request["prompts"], request["steps"], sampling)}
            case _:
                answer = {"load_seconds": bench.load_seconds}
        print(json.dumps(answer), flush=True)


main()
