"""Engine against engine: Skerry's numba engine and llama.cpp, on the same GGUF file and on Q4_0.

    python -m bench.engine [--quick] [--json FILE] [--only TEXT]
    python -m bench.engine --shape llama-3.1-8b [--quick] [--json FILE] [--threads N]

All run as child processes, two threads each, interleaved round by round; a sample taken while
other processes used the machine is repeated. Skerry's figures include scheduling and sampling,
llama.cpp's are bare forward passes with logits read back. Q4_0 is what llama.cpp has its best
kernels for: it makes that file from the model's, once.

The last table holds the figures against what is wanted of them. `--shape` measures a model of
random weights in a public shape instead: see `engine_shapes`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bench.measuring import machine, stats
from bench.measuring.quiet import Watch
from bench.subjects import engine_targets
from bench.subjects.engine_cases import (
    APART,
    ARRIVALS,
    ARRIVING,
    BANDWIDTH,
    BUSY,
    CASES,
    GAP,
    INT8,
    KEPT,
    OURS,
    PEER,
    PEER_Q4_0,
    READ,
    STREAMS,
    TARGETS,
    TOGETHER,
    WARMING,
    WORK,
    Case,
    make_prompts,
)
from bench.subjects.engine_targets import Model
from bench.subjects.models import default_model, home
from bench.subjects.peers import CACHE, ROOT, Worker, python_of
from bench.subjects.shaped_files import SHAPES

THREADS = 2
Sample = TypeVar("Sample")
ATTEMPTS = 4  # samples taken before a disturbed one is believed, and counted as disturbed


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


@contextmanager
def busy_neighbour() -> Generator[int]:
    """A process that keeps one core busy; its id."""
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        os.sched_setaffinity(process.pid, {core})
        try:
            yield process.pid
        finally:
            process.kill()


class Measurement:
    """Figures of all rounds, and how many samples stayed disturbed."""

    def __init__(self, workers: dict[str, Worker]) -> None:
        self.workers = workers
        self.cells: dict[str, stats.Cell] = {}
        self.disturbed = 0
        self._pids = [worker.pid for worker in workers.values()]
        self._salt = 0

    def sample(self, take: Callable[[int], Sample], *neighbours: int) -> Sample:
        """What `take` gives for a number that no other sample had."""
        self._salt += 1
        value, quiet = undisturbed(lambda: take(self._salt), [*self._pids, *neighbours])
        self.disturbed += not quiet
        return value

    def add(self, name: str, unit: str, system: str, value: float) -> None:
        self.cells.setdefault(name, stats.Cell(name, unit)).add(system, value)

    def bandwidth(self) -> None:
        """What the machine has at this moment: it changes with what its host does."""
        value = self.sample(lambda _: machine.sustained_read(THREADS))
        self.add(READ, "GB/s", OURS, value)

    def against_peers(self, case: Case, order: list[str], *neighbours: int) -> None:
        for name in order if case.peer else [OURS]:
            worker = self.workers[name]
            value = self.sample(lambda salt, w=worker: rate(w, case, salt), *neighbours)
            self.add(case.name, "tok/s", name, value)

    def beside_a_neighbour(self, order: list[str]) -> None:
        """Each system's speed beside a busy process, right after its speed without."""
        quiet = f"{BUSY.name}, before it came"
        self.against_peers(replace(BUSY, name=quiet), order)
        with busy_neighbour() as pid:
            self.against_peers(BUSY, order, pid)
        for name in order:
            before, beside = (self.cells[cell].samples[name][-1] for cell in (quiet, BUSY.name))
            self.add(KEPT, "%", name, 100 * beside / before)

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
        self.add(GAP, "times", OURS, p99 / p50)
        self.add(WORK, "% of apart", OURS, 100 * float(answer["share"]))

    def add_bounds(self, model: Model, int8: float) -> None:
        """What was measured as a share of what this machine could do at most."""
        bandwidths = self.cells[READ].samples[OURS]
        for case in CASES:
            if case.name not in self.cells:
                continue
            speeds = self.cells[case.name].samples[OURS]
            for speed, bandwidth in zip(speeds, bandwidths, strict=True):
                if case.op == "prefill":
                    share = engine_targets.of_int8(model, int8, speed)
                    self.add(f"{case.name}: {INT8}", "%", OURS, share)
                elif case.batch == 1:
                    share = engine_targets.of_bandwidth(model, bandwidth, speed, case.context)
                    self.add(f"{case.name}: {BANDWIDTH}", "%", OURS, share)


def measure(workers: dict[str, Worker], rounds: int, only: str, console: Console) -> Measurement:
    """Every case in every round, ours and the peers in alternating order; before them short ones,
    which run the same code."""
    cases = [case for case in CASES if only in case.name]
    measurement = Measurement(workers)
    for number in range(rounds + 1):
        if number == 1:  # round 0 warmed up
            measurement.cells.clear()
            measurement.disturbed = 0
        order = list(workers)[:: 1 if number % 2 else -1]
        with console.status(f"round {number} of {rounds} (round 0 warms up)"):
            if not number:
                for case in [each for each in WARMING if only in each.name] or WARMING[:1]:
                    measurement.against_peers(case, order)
                continue
            measurement.bandwidth()
            for case in cases:
                measurement.against_peers(case, order)
            if only in BUSY.name:
                measurement.beside_a_neighbour(order)
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
    parser.add_argument("--quick", action="store_true", help="fewer rounds: 3, of a shape 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    parser.add_argument("--model", type=Path, metavar="GGUF", help="another model file for all")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows with this in their name")
    parser.add_argument("--shape", choices=SHAPES, help="a model of random weights in this shape")
    parser.add_argument("--layers", type=int, metavar="N", help="of a shape: fewer than it has")
    parser.add_argument("--threads", type=int, default=THREADS, metavar="N", help="of a shape")
    parser.add_argument("--amx", action="store_true", help="of a shape: llama.cpp with AMX, too")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if options.shape:
        from bench.core import engine_shapes  # which profiles steps by this module

        return engine_shapes.run(options)
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

    measurement = measure(workers, 3 if options.quick else 7, options.only, console)
    int8 = ceilings[f"int8 products, {THREADS} threads, GMAC/s"]
    measurement.add_bounds(Model(**about[OURS]["model"]), int8)
    cells, disturbed = list(measurement.cells.values()), measurement.disturbed
    peers = list(files)
    console.print(stats.table("engine against engine, medians", cells, OURS, peers))
    console.print(engine_targets.table(TARGETS, measurement.cells, OURS))
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
