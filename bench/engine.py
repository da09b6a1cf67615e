"""Engine against engine: Skerry's numba engine and llama.cpp on the same GGUF file.

    python -m bench.engine [--quick] [--json FILE] [--peer-file OTHER.gguf]

Both run as child processes, two threads each, interleaved round by round; a sample taken while
other processes used the machine is repeated. Skerry's figures include scheduling and sampling,
llama.cpp's are bare forward passes with logits read back.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from bench import machine, stats
from bench.models import default_model, home
from bench.peers import ROOT, Worker, python_of
from bench.quiet import Watch

OURS = "skerry"
PEER = "llama.cpp same file"
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

    @property
    def tokens(self) -> int:
        return self.context if self.op == "prefill" else self.batch * self.steps


CASES = (
    Case("decode b1", "decode", 1, 64, 64),
    Case("decode b8", "decode", 8, 64, 24),
    Case("decode b32", "decode", 32, 64, 12),
    Case("prefill 512", "prefill", 1, 512, 0),
    Case("decode b8, context 400", "decode", 8, 400, 16),
    Case("decode b1, top_p 0.95", "decode", 1, 64, 64, "top_p 0.95", peer=False),
    Case("decode b32, top_p 0.95", "decode", 32, 64, 12, "top_p 0.95", peer=False),
)


def prompts(case: Case, salt: int) -> list[list[int]]:
    """Token ids that look like nothing cached: distinct per sequence and per call."""
    return [
        [(i * 7919 + sequence * 31 + salt * 104_729) % 40_000 + 100 for i in range(case.context)]
        for sequence in range(case.batch)
    ]


def rate(worker: Worker, case: Case, salt: int) -> float:
    """Tokens per second of one sample."""
    answer = worker.call(
        op=case.op, prompts=prompts(case, salt), steps=case.steps, sampling=case.sampling
    )
    return case.tokens / float(answer["seconds"])


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


def measure(
    workers: dict[str, Worker], rounds: int, console: Console
) -> tuple[list[stats.Cell], int]:
    """Every case in every round, ours and the peers in alternating order."""
    cells = {case: stats.Cell(case.name, "tok/s") for case in CASES}
    pids = [worker.pid for worker in workers.values()]
    disturbed = 0
    salt = 0
    for number in range(rounds + 1):
        order = list(workers.items()) if number % 2 else list(workers.items())[::-1]
        with console.status(f"round {number} of {rounds} (round 0 warms up)"):
            for case in CASES:
                for name, worker in order:
                    if name != OURS and not case.peer:
                        continue
                    salt += 1
                    value, quiet = undisturbed(lambda w=worker, c=case, s=salt: rate(w, c, s), pids)
                    if number:
                        cells[case].add(name, value)
                        disturbed += not quiet
    return list(cells.values()), disturbed


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 9")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    parser.add_argument("--model", type=Path, metavar="GGUF", help="another model file for both")
    parser.add_argument(
        "--peer-file",
        type=Path,
        metavar="GGUF",
        action="append",
        default=[],
        help="also run llama.cpp on this file (a Q4_0 of the model, say)",
    )
    return parser.parse_args()


def main() -> int:
    options = arguments()
    console = Console()
    model = options.model or default_model()[1].weights
    worker = "bench.workers.skerry_engine"
    ours = [sys.executable, "-m", worker, str(model), str(home() / "cache"), str(THREADS)]
    peer = [str(python_of("llama-cpp-python")), str(ROOT / "bench/workers/llama_cpp_engine.py")]
    workers = {OURS: Worker(OURS, ours), PEER: Worker(PEER, [*peer, str(model), str(THREADS)])}
    for path in options.peer_file:
        name = f"llama.cpp {path.stem}"
        workers[name] = Worker(name, [*peer, str(path), str(THREADS)])
    about = {name: each.call(op="about") for name, each in workers.items()}
    description, ceilings = machine.describe(), machine.limits(THREADS)
    stats.heading(console, description, ceilings)

    cells, disturbed = measure(workers, 3 if options.quick else 9, console)
    peers = [name for name in workers if name != OURS]
    console.print(stats.table("engine against engine, tok/s, medians", cells, OURS, peers))
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
