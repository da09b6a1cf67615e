"""Encoder against encoder: Skerry and sentence-transformers on all-MiniLM-L6-v2, words to vectors.

    python -m bench.core.embeddings [--quick] [--json FILE]

Both run as child processes, two threads each, interleaved round by round; a sample taken while
other processes used the machine is repeated. First their vectors are compared.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass

from rich.console import Console

from bench.engine import undisturbed
from bench.measuring import stats
from bench.measuring.run import Run, parser
from bench.subjects.models import home
from bench.subjects.peers import ROOT, Worker, python_of
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.store import ModelStore

OURS, PEER = "skerry", "sentence-transformers"
MODEL = "@cf/sentence-transformers/all-minilm-l6-v2"
THREADS = 2
MAX_DISTANCE = 1e-4  # 1 - cosine
WORDS = [
    *("the", "and", "that", "was", "for", "with", "they", "have", "from", "word", "what", "when"),
    *("were", "there", "which", "their", "about", "many", "then", "these", "would", "other"),
    *("people", "water", "long", "little", "very", "after", "called", "where", "most", "know"),
]


@dataclass(frozen=True)
class Case:
    """`count` texts of `shortest` to `longest` words, in one call."""

    name: str
    count: int
    shortest: int
    longest: int

    def texts(self, seed: int) -> list[str]:
        generator = random.Random(seed)
        return [
            " ".join(generator.choices(WORDS, k=generator.randint(self.shortest, self.longest)))
            for _ in range(self.count)
        ]


CASES = (
    Case("1 sentence", 1, 12, 12),
    Case("8 sentences", 8, 8, 20),
    Case("256 sentences", 256, 8, 20),
    Case("64 paragraphs", 64, 80, 160),
    Case("128 of all lengths", 128, 2, 200),
)


def largest_distance(workers: dict[str, Worker]) -> float:
    """Between the two's vectors of the same texts."""
    texts = [*CASES[1].texts(0), *CASES[4].texts(0)]
    ours, theirs = (each.call(texts=texts, vectors=True)["vectors"] for each in workers.values())
    return max(
        1 - sum(a * b for a, b in zip(mine, other, strict=True))
        for mine, other in zip(ours, theirs, strict=True)
    )


def measure(
    workers: dict[str, Worker], rounds: int, console: Console
) -> tuple[list[stats.Cell], int]:
    """Texts per second of every case in every round, the two in alternating order."""
    cells = {case: stats.Cell(case.name, "texts/s") for case in CASES}
    pids = [worker.pid for worker in workers.values()]
    disturbed = 0
    for number in range(rounds + 1):
        order = list(workers.items()) if number % 2 else list(workers.items())[::-1]
        with console.status(f"round {number} of {rounds} (round 0 warms up)"):
            for case in CASES:
                texts = case.texts(number)
                for name, worker in order:
                    answer, quiet = undisturbed(lambda w=worker, t=texts: w.call(texts=t), pids)
                    if number:
                        cells[case].add(name, case.count / float(answer["seconds"]))
                        disturbed += not quiet
    return list(cells.values()), disturbed


def main() -> int:
    run = Run(parser(__doc__, quick="3 rounds instead of 9").parse_args(), threads=THREADS)
    spec = Catalog.load(home()).resolve(MODEL)
    files = ModelStore(home()).pull(spec, lambda _what, _share: None)
    ours = [sys.executable, "-m", "bench.workers.skerry_encoder", MODEL, str(home()), str(THREADS)]
    peer = str(ROOT / "bench/workers/sentence_transformers_encoder.py")
    theirs = [str(python_of(PEER)), peer, str(files.weights), str(THREADS)]
    workers = {OURS: Worker(OURS, ours), PEER: Worker(PEER, theirs)}

    distance = largest_distance(workers)
    run.console.print(f"largest 1 - cosine between the two: {distance:.1e}")
    cells, disturbed = measure(workers, 3 if run.is_quick else 9, run.console)
    run.console.print(stats.table("encoder against encoder, texts/s, medians", cells, OURS, [PEER]))
    if disturbed:
        run.console.print(f"{disturbed} samples stayed disturbed by foreign load")
    run.write(
        cells,
        distance=distance,
        disturbed=disturbed,
        ratios={cell.name: round(cell.ratio(OURS, PEER), 3) for cell in cells},
    )
    for each in workers.values():
        each.close()
    return int(distance > MAX_DISTANCE)


if __name__ == "__main__":
    sys.exit(main())
