"""Starts an engine of its own and makes one token; prints the times of its phases as JSON.

Weights are mapped while kernels are loaded, so what they take is told once more, by themselves.

python -m bench.workers.local_start HOME THREADS
"""

from __future__ import annotations

import time

STARTED = time.perf_counter()

import json  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

from bench.subjects.models import MODEL  # noqa: E402
from bench.subjects.requests import Request, SamplingParams  # noqa: E402
from skerry_core.config import EngineConfig  # noqa: E402
from skerry_core.engine.engine import Engine  # noqa: E402
from skerry_core.kernels.simd.targets import choose_target  # noqa: E402
from skerry_core.runners.numba_cpu import NumbaRunner  # noqa: E402
from skerry_core.runners.packing.packed import load_packed  # noqa: E402
from skerry_edge.text.model import TextModel  # noqa: E402
from skerry_regions.models.catalog import Catalog  # noqa: E402
from skerry_regions.models.store import ModelStore  # noqa: E402

NUM_BLOCKS = 256


def main(home: str, threads: str) -> None:
    marks: dict[str, float] = {}
    before = STARTED

    def mark(name: str) -> None:
        nonlocal before
        now = time.perf_counter()
        marks[name], before = now - before, now

    mark("imports")
    spec = Catalog.load(Path(home)).resolve(MODEL)
    files = ModelStore(Path(home)).open(spec)
    text = TextModel(files, context_window=spec.context_window)
    prompt = text.encode(text.render([{"role": "user", "content": "Hello"}]))
    mark("tokenizer")
    cache = Path(home) / "cache"
    runner = NumbaRunner.open(
        files.weights, num_blocks=NUM_BLOCKS, threads=int(threads), cache_dir=cache
    )
    runner.warm_up(lambda what, share: None)
    mark("kernels and weights")
    engine = Engine(runner, EngineConfig(), model_key=files.model_key)
    request = Request(id="first", prompt_ids=tuple(prompt), sampling=SamplingParams())
    engine.add(request.sequence())
    while not any(output.token_ids for output in engine.step()):
        pass
    mark("first token")
    rollup = Path("/proc/self/smaps_rollup").read_text().split()
    sizes = {name: int(rollup[rollup.index(f"{name}:") + 1]) / 1024 for name in ("Rss", "Pss")}
    before = time.perf_counter()
    load_packed(
        files.weights,
        group_rows=choose_target().rows,
        cache_dir=cache,
        progress=lambda what, share: None,
    )
    weights = time.perf_counter() - before
    sys.stdout.write(json.dumps({"marks": marks, "MiB": sizes, "weights": weights}) + "\n")
    sys.stdout.flush()
    engine.close()


main(*sys.argv[1:])
