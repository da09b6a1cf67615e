"""Starts an engine on a weight file and makes one token of a prompt of 20; tells the seconds since
the process began, and its memory, as JSON.

python -m bench.workers.shaped_start WEIGHTS CACHE THREADS
"""

from __future__ import annotations

import time

STARTED = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import threading  # noqa: E402
from pathlib import Path  # noqa: E402

from bench.subjects.requests import Request, SamplingParams  # noqa: E402
from skerry_core.config import EngineConfig  # noqa: E402
from skerry_core.engine.engine import Engine  # noqa: E402
from skerry_core.runners.numba_cpu import NumbaRunner  # noqa: E402

PROMPT = 20  # tokens
NUM_BLOCKS = 64
_EVERY = 0.05  # seconds between looks at this process's memory


def mebibytes(kind: str) -> float:
    """Memory of this process: `VmRSS`, or `RssAnon`, what is in no file."""
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index(f"{kind}:") + 1]) / 1024


def started() -> float:
    """Seconds since the kernel began this process."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    return up - ticks / os.sysconf("SC_CLK_TCK")


class Peak:
    """The most memory in no file, looked at all the time."""

    def __init__(self) -> None:
        self.most = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_EVERY):
            self.most = max(self.most, mebibytes("RssAnon"))

    def close(self) -> float:
        self._over.set()
        self._thread.join()
        return self.most


def main(weights: str, cache: str, threads: str) -> None:
    peak = Peak()
    runner = NumbaRunner.open(
        Path(weights), num_blocks=NUM_BLOCKS, threads=int(threads), cache_dir=Path(cache)
    )
    runner.warm_up(lambda what, share: None)
    opened = time.perf_counter() - STARTED
    engine = Engine(runner, EngineConfig(), model_key=b"bench")
    sampling = SamplingParams(temperature=0.0, max_tokens=4)
    prompt = tuple(range(100, 100 + PROMPT))
    engine.add(Request(id="first", prompt_ids=prompt, sampling=sampling).sequence())
    while not any(output.token_ids for output in engine.step()):
        pass
    told = {
        "first_token": started(),
        "opened": opened,
        "cpu": time.process_time(),
        "rss": mebibytes("VmRSS"),
        "anonymous": peak.close(),
        "kv": runner._page_ahead.num_bytes / 2**20,
        "packed": sum(each.nbytes for each in runner._packed.mapped) / 2**20,
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    engine.close()


main(*sys.argv[1:])
