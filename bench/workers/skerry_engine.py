"""Skerry's engine as a benchmark worker: scheduler, step, sampling and outputs, all timed."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.measuring import machine
from bench.subjects.requests import Request, SamplingParams
from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.models.tensor_names import EMBEDDING, HEAD
from skerry_core.runners.numba_cpu import NumbaRunner

SAMPLING = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=4096),
    "top_p 0.95": SamplingParams(temperature=1.0, top_p=0.95, seed=1, max_tokens=4096),
    "random": SamplingParams(temperature=1.0, max_tokens=4096),  # rows with tokens of their own
}


SERVING = EngineConfig(max_running=64, max_draft_tokens=0)  # a step is a token of every stream
BARE = replace(SERVING, max_gap_seconds=math.inf)  # none is far ahead when the last one starts


class Bench:
    def __init__(self, weights: Path, cache: Path, threads: int) -> None:
        start = time.perf_counter()
        runner = NumbaRunner.open(
            weights, num_blocks=33 * 10, max_samples=64, threads=threads, cache_dir=cache
        )
        runner.warm_up(lambda _what, _share: None)
        self.load_seconds = time.perf_counter() - start
        self.runner = runner
        self.engine = Engine(runner, BARE, model_key=b"bench")
        self._busy = runner._step.owned[2]["busy_experts"]  # how many, and which
        self.busy_experts = 0.0  # of the last layer, that a step of the last decoding read
        self.cpu_seconds = 0.0  # of the last decoding, all threads
        self._threads = threads
        self._count = 0

    def add(self, prompt: list[int], sampling: SamplingParams, key: bytes = b"") -> str:
        """Start one request; under a cache key of its own, or one that it shares with others."""
        self._count += 1
        name = str(self._count)
        key = key or name.encode()
        request = Request(id=name, prompt_ids=tuple(prompt), sampling=sampling, cache_key=key)
        self.engine.add(request.sequence())
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

    def start(self, prompts: list[list[int]], sampling: str, key: bytes = b"") -> list[str]:
        """Requests that decode from the next step on."""
        names = [self.add(prompt, SAMPLING[sampling], key) for prompt in prompts]
        started: set[str] = set()
        while len(started) < len(names):
            started.update(o.request_id for o in self.engine.step() if o.token_ids)
        self.engine.step()
        return names

    def decode(self, prompts: list[list[int]], steps: int, sampling: str) -> float:
        """Seconds of `steps` steps with every prompt decoding."""
        names = self.start(prompts, sampling)
        start, cpu = time.perf_counter(), time.process_time()
        tokens = 0
        busy = []
        for _ in range(steps):
            tokens += sum(len(output.token_ids) for output in self.engine.step())
            busy.append(int(self._busy[0]))
        seconds = time.perf_counter() - start
        self.cpu_seconds = time.process_time() - cpu
        self.busy_experts = statistics.mean(busy)
        self.stop(names)
        if tokens != steps * len(names):
            raise RuntimeError(f"expected {steps * len(names)} tokens, got {tokens}")
        return seconds

    def read_weights(self) -> float:
        """1e9 bytes per second of reading the packed weights through: the better of two times."""
        (weights,) = self.runner._packed.mapped
        return max(machine.read_rate(weights, self._threads) for _ in range(2))

    def decode_shared(
        self, prompts: list[list[int]], steps: int, sampling: str
    ) -> tuple[float, float]:
        """As `decode`, after one of the prompts is in the prefix cache that all share; and the
        bytes of KV that a step reads."""
        self._count += 1
        key = f"shared {self._count}".encode()
        self.stop(self.start(prompts[:1], sampling, key))
        names = self.start(prompts, sampling, key)
        start = time.perf_counter()
        for _ in range(steps):
            self.engine.step()
        seconds = time.perf_counter() - start
        blocks_read = int(self.runner._step.views["visits"][0])
        bytes_read = blocks_read * self.runner.kv_format.block_bytes
        self.stop(names)
        return seconds, bytes_read

    def mixed(
        self, prompts: list[list[int]], arriving: list[list[int]], steps: int, sampling: str
    ) -> dict[str, float]:
        """Streams that decode, and go on while prompts arrive, one after the other: each when the
        one before has its first token and the streams have been alone for `steps` steps.

        The gaps are those between a stream's tokens, in seconds, alone and while a prompt is there;
        `share` is the time that the same work takes apart, by the time it takes together.
        """
        prefills = [self.prefill(arriving[:1], sampling)]
        self.engine = Engine(self.runner, SERVING, model_key=b"bench")
        names = self.start(prompts, sampling)
        alone: list[float] = []
        gaps: list[float] = []
        for prompt in arriving:
            alone += [self._timed_step()[0] for _ in range(steps)]
            name = self.add(prompt, SAMPLING[sampling])
            is_first_token = False
            while not is_first_token:
                seconds, told = self._timed_step()
                gaps.append(seconds)
                is_first_token = name in told
            self.stop([name])
        self.stop(names)
        self.engine = Engine(self.runner, BARE, model_key=b"bench")
        prefills.append(self.prefill(arriving[-1:], sampling))
        p50 = statistics.median(alone)
        apart = len(arriving) * statistics.mean(prefills) + len(gaps) * p50
        ordered = sorted(gaps)
        p99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        return {"p50_alone": p50, "p99": p99, "share": apart / sum(gaps)}

    def _timed_step(self) -> tuple[float, set[str]]:
        """Seconds of a step, and who got a token."""
        start = time.perf_counter()
        outputs = self.engine.step()
        return time.perf_counter() - start, {o.request_id for o in outputs if o.token_ids}

    def stop(self, names: list[str]) -> None:
        """End requests; the others go on, in one step."""
        for name in names:
            self.engine.abort(name)
        self.engine.step()

    def _drain(self) -> None:
        while self.engine.has_work:
            self.engine.step()


def costs(runner: NumbaRunner) -> dict[str, float]:
    """See `bench.subjects.engine_targets.Model`."""
    config, layouts = runner.model, dict(runner._packed.layouts)
    head = layouts.pop(EMBEDDING)  # of which an input reads one row
    if not config.tied_embeddings:
        head = layouts.pop(HEAD)
    linear = layouts.values()
    experts = [each for name, each in layouts.items() if "_exps." in name]
    expert_products = sum(layout.num_rows * layout.num_columns for layout in experts)
    unused = 1 - config.experts.used / config.experts.count if config.experts else 0.0
    return {
        "weight_bytes": head.num_bytes + sum(layout.num_bytes for layout in linear),
        "kv_bytes": runner.kv_format.block_bytes / BLOCK_SIZE,
        "products": sum(layout.num_rows * layout.num_columns for layout in linear)
        - unused * expert_products,
        "expert_bytes": sum(layout.num_bytes for layout in experts),
        "experts": config.experts.count if config.experts else 0,
    }


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
                seconds = bench.decode(request["prompts"], request["steps"], sampling)
                answer = {"seconds": seconds, "cpu": bench.cpu_seconds}
                answer |= {"experts": bench.busy_experts}
            case "read":
                answer = {"GB/s": bench.read_weights()}
            case "decode shared":
                seconds, kv = bench.decode_shared(request["prompts"], request["steps"], sampling)
                answer = {"seconds": seconds, "kv_bytes": kv}
            case "mixed":
                answer = bench.mixed(
                    request["prompts"], request["arriving"], request["steps"], sampling
                )
            case _:
                answer = {"load_seconds": bench.load_seconds, "model": costs(bench.runner)}
        print(json.dumps(answer), flush=True)


main()
