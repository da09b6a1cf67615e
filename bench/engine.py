"""Engine against engine: Skerry's numba engine and llama.cpp, on the same GGUF file and on Q4_0.

    python -m bench.engine [--quick] [--json FILE] [--only TEXT]

All run as child processes, two threads each, interleaved round by round; a sample taken while
other processes used the machine is repeated. Skerry's figures include scheduling and sampling,
llama.cpp's are bare forward passes with logits read back. Q4_0 is what llama.cpp has its best
kernels for: it makes that file from the model's, once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bench import machine, stats
from bench.models import default_model, home
from bench.peers import CACHE, ROOT, Worker, python_of
from bench.quiet import Watch

OURS = "skerry"
PEER = "llama.cpp same file"
PEER_Q4_0 = "llama.cpp Q4_0"
THREADS = 2
Sample = TypeVar("Sample")
ATTEMPTS = 4  # samples taken before a disturbed one is believed, and counted as disturbed


@dataclass(frozen=True)
class Case:
    """One figure: `batch` sequences of `context` tokens decode `steps` steps, or one prefill."""

    name: str
    op: str
    batch: int
    context: int
    steps: int
    sampling: str = "greedy"
    peer: bool = True
    shared: int = 0  # tokens that all prompts begin with

    @property
    def tokens(self) -> int:
        return self.context if self.op == "prefill" else self.batch * self.steps

    def request(self, salt: int) -> dict[str, Any]:
        """What a worker is asked for."""
        prompts = make_prompts(self.batch, self.context, salt, self.shared)
        return {
            "op": self.op,
            "prompts": prompts,
            "steps": self.steps,
            "sampling": self.sampling,
        }


CASES = (
    Case("decode b1", "decode", 1, 64, 64),
    Case("decode b8", "decode", 8, 64, 24),
    Case("decode b32", "decode", 32, 64, 12),
    Case("prefill 512", "prefill", 1, 512, 0),
    Case("prefill 4096", "prefill", 1, 4096, 0),
    Case("decode b1, context 4000", "decode", 1, 4000, 24),  # after a prefill: llama.cpp keeps it
    Case("decode b8, context 400", "decode", 8, 400, 16),
    Case("decode b1, top_p 0.95", "decode", 1, 64, 64, "top_p 0.95", peer=False),
    Case("decode b32, top_p 0.95", "decode", 32, 64, 12, "top_p 0.95", peer=False),
)
APART = Case("decode b16, context 1056", "decode", 16, 1056, 12, peer=False)
TOGETHER = Case(
    "decode b16, 1024 of 1056 shared", "decode shared", 16, 1056, 12, peer=False, shared=1024
)
STREAMS = Case("decode b16 while prompts of 2048 arrive", "mixed", 16, 64, 60, peer=False)
ARRIVING, ARRIVALS = 2048, 3


def make_prompts(count: int, length: int, salt: int, shared: int = 0) -> list[list[int]]:
    """Token ids that look like nothing cached: distinct per sequence, from the first token that is
    not shared on, and per call."""

    def token(i: int, sequence: int) -> int:
        own = sequence * 31 if i >= shared else 0
        return (i * 7919 + own + salt * 104_729) % 40_000 + 100

    return [[token(i, sequence) for i in range(length)] for sequence in range(count)]


def rate(worker: Worker, case: Case, salt: int) -> float:
    """Tokens per second of one sample."""
    return case.tokens / float(worker.call(**case.request(salt))["seconds"])


def undisturbed(
    sample: Callable[[], Sample], pids: list[int], *, attempts: int = ATTEMPTS
) -> tuple[Sample, bool]:
    """The first sample without foreign load, or the last one with it."""
    for attempt in range(1, attempts + 1):
        with Watch(pids) as watch:
            value = sample()
        if watch.quiet or attempt == attempts:
            return value, watch.quiet
    raise ValueError(f"{attempts} attempts")


class Measurement:
    """Figures of all rounds, and how many samples stayed disturbed."""

    def __init__(self, workers: dict[str, Worker]) -> None:
        self.workers = workers
        self.cells: dict[str, stats.Cell] = {}
        self.disturbed = 0
        self._pids = [worker.pid for worker in workers.values()]
        self._salt = 0

    def sample(self, take: Callable[[int], Sample]) -> Sample:
        """What `take` gives for a number that no other sample had."""
        self._salt += 1
        value, quiet = undisturbed(lambda: take(self._salt), self._pids)
        self.disturbed += not quiet
        return value

    def add(self, name: str, unit: str, system: str, value: float) -> None:
        self.cells.setdefault(name, stats.Cell(name, unit)).add(system, value)

    def against_peers(self, case: Case, *, is_reversed: bool) -> None:
        names = list(self.workers) if case.peer else [OURS]
        for name in reversed(names) if is_reversed else names:
            worker = self.workers[name]
            value = self.sample(lambda salt, worker=worker: rate(worker, case, salt))
            self.add(case.name, "tok/s", name, value)

    def shared_prefix(self) -> None:
        """Streams over one cached prefix, and as many with prompts of their own."""
        ours = self.workers[OURS]
        apart = self.sample(lambda salt: rate(ours, APART, salt))
        answer = self.sample(lambda salt: ours.call(**TOGETHER.request(salt)))
        self.add(APART.name, "tok/s", OURS, apart)
        self.add(TOGETHER.name, "tok/s", OURS, TOGETHER.tokens / float(answer["seconds"]))
        self.add(f"{TOGETHER.name}: KV read", "MB/step", OURS, float(answer["kv_bytes"]) / 1e6)

    def mixed_load(self) -> None:
        """Streams while prompts arrive, against both apart."""

        def take(salt: int) -> dict[str, Any]:
            arriving = make_prompts(ARRIVALS, ARRIVING, 1000 + salt)
            return self.workers[OURS].call(**STREAMS.request(salt), arriving=arriving)

        answer = self.sample(take)
        p50, p99 = float(answer["p50_alone"]), float(answer["p99"])
        self.add(f"{STREAMS.name}: gap p50 of decode alone", "ms", OURS, 1e3 * p50)
        self.add(f"{STREAMS.name}: gap p99", "ms", OURS, 1e3 * p99)
        self.add(f"{STREAMS.name}: work per time", "% of apart", OURS, 100 * float(answer["share"]))


def measure(workers: dict[str, Worker], rounds: int, only: str, console: Console) -> Measurement:
    """Every case in every round, ours and the peers in alternating order."""
    cases = [case for case in CASES if only in case.name]
    measurement = Measurement(workers)
    for number in range(rounds + 1):
        if number == 1:  # round 0 warmed up
            measurement.cells.clear()
            measurement.disturbed = 0
        with console.status(f"round {number} of {rounds} (round 0 warms up)"):
            for case in cases:
                measurement.against_peers(case, is_reversed=number % 2 == 0)
            if only in TOGETHER.name:
                measurement.shared_prefix()
            if only in STREAMS.name:
                measurement.mixed_load()
    return measurement


def requantised(model: Path) -> Path:
    """The model in Q4_0, made on first use."""
    path = CACHE / "models" / f"{model.stem}-requantised-Q4_0.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        script = ROOT / "bench/workers/llama_cpp_quantize.py"
        partial = path.with_suffix(".partial")
        subprocess.run([python_of("llama-cpp-python"), script, model, partial], check=True)
        partial.rename(path)
    return path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    parser.add_argument("--model", type=Path, metavar="GGUF", help="another model file for all")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this in their name")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    console = Console()
    model = options.model or default_model()[1].weights
    worker = "bench.workers.skerry_engine"
    ours = [sys.executable, "-m", worker, str(model), str(home() / "cache"), str(THREADS)]
    peer = [str(python_of("llama-cpp-python")), str(ROOT / "bench/workers/llama_cpp_engine.py")]
    files = {PEER: model, PEER_Q4_0: requantised(model)}
    workers = {OURS: Worker(OURS, ours)}
    for name, path in files.items():
        workers[name] = Worker(name, [*peer, str(path), str(THREADS)])
    about = {name: each.call(op="about") for name, each in workers.items()}
    description, ceilings = machine.describe(), machine.limits(THREADS)
    stats.heading(console, description, ceilings)

    measurement = measure(workers, 3 if options.quick else 9, options.only, console)
    cells, disturbed = list(measurement.cells.values()), measurement.disturbed
    peers = list(files)
    console.print(stats.table("engine against engine, medians", cells, OURS, peers))
    if disturbed:
        console.print(f"{disturbed} samples stayed disturbed by foreign load")
    stats.write(
        options.json,
        {
            "machine": description,
            "limits": ceilings,
            "about": about,
            "rows": stats.rows(cells),
            "disturbed": disturbed,
            "ratios": {
                name: {c.name: round(c.ratio(OURS, name), 3) for c in cells if name in c.samples}
                for name in peers
            },
        },
    )
    for each in workers.values():
        each.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
