"""The engine's figures: what is measured of whom, and what is wanted of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.subjects.engine_targets import Target

OURS = "skerry"
PEER = "llama.cpp same file"
PEER_Q4_0 = "llama.cpp Q4_0"


def make_prompts(count: int, length: int, salt: int, shared: int = 0) -> list[list[int]]:
    """Token ids that look like nothing cached: distinct per sequence, from the first token that is
    not shared on, and per call."""

    def token(i: int, sequence: int) -> int:
        own = sequence * 31 if i >= shared else 0
        return (i * 7919 + own + salt * 104_729) % 40_000 + 100

    return [[token(i, sequence) for i in range(length)] for sequence in range(count)]


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
WARMING = tuple(case for case in CASES if case.context <= 512 and case.peer)
APART = Case("decode b16, context 1056", "decode", 16, 1056, 12, peer=False)
TOGETHER = Case(
    "decode b16, 1024 of 1056 shared", "decode shared", 16, 1056, 12, peer=False, shared=1024
)
STREAMS = Case("decode b16 while prompts of 2048 arrive", "mixed", 16, 64, 20, peer=False)
ARRIVING, ARRIVALS = 2048, 3
BUSY = Case("decode b1 beside a busy neighbour", "decode", 1, 64, 24)

READ = "96 MiB read over and over, 2 threads"
BANDWIDTH, INT8 = "of the bandwidth bound", "of the int8 peak"  # appended to a case's name
GAP = f"{STREAMS.name}: gap p99 by p50 of decode alone"
WORK = f"{STREAMS.name}: work per time"
KEPT = f"{BUSY.name}: of its quiet speed"

TARGETS = (
    Target(f"decode b1: {BANDWIDTH}", 85),
    Target("decode b1, context 4000", 5, PEER),
    Target("decode b8", 3, PEER_Q4_0),
    Target("decode b32", 2.8, PEER_Q4_0),
    Target("prefill 512", 2.2, PEER_Q4_0),
    Target("prefill 4096", 3, PEER),
    Target(GAP, 3, at_most=True),
    Target(WORK, 85),
    Target(KEPT, 45),
)
