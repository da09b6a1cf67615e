"""Public request traces (`bench/data`), and synthetic ones for tests.

Times in seconds from the start of the trace; a block is the trace's own unit of shared prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from skerry_regions.twin.traces import (
    MOONCAKE_BLOCK,
    TraceRequest,
    read_trace,
    spread,
)

__all__ = [
    "MOONCAKE_BLOCK", "MOONCAKE_TICK", "TraceRequest", "azure", "chats", "mooncake",
    "reusable_share", "spread",
]  # fmt: skip

DATA = Path(__file__).parents[2] / "data"
MOONCAKE_TICK = 3.0  # seconds that its times are rounded to


def mooncake(name: str) -> list[TraceRequest]:
    """`conversation` or `synthetic`, at native speed."""
    return read_trace(DATA / f"mooncake_{name}.jsonl.gz").requests


def azure(name: str) -> list[TraceRequest]:
    """`code` or `conv` of 2023, at native speed; knows nothing of shared prefixes."""
    return read_trace(DATA / f"azure_llm_2023_{name}.csv.gz").requests


def chats(
    rng: Random, *, requests: int, rate: float, groups: int, block: int = MOONCAKE_BLOCK
) -> list[TraceRequest]:
    """Poisson arrivals of prompts that begin with one of `groups` shared prefixes."""
    shared = [
        tuple(rng.randbytes(8) for _ in range(rng.randint(2, 12))) for _ in range(max(groups, 1))
    ]
    now, made = 0.0, []
    for _ in range(requests):
        now += rng.expovariate(rate)
        own = tuple(rng.randbytes(8) for _ in range(rng.randint(1, 12)))
        blocks = rng.choice(shared) + own
        made.append(
            TraceRequest(
                arrival=now,
                prompt_tokens=len(blocks) * block + rng.randrange(block),
                output_tokens=rng.randint(16, 400),
                blocks=blocks,
            )
        )
    return made


def reusable_share(requests: Sequence[TraceRequest], block: int = MOONCAKE_BLOCK) -> float:
    """Return what share of prompt tokens one infinite cache saves: no policy can beat it."""
    seen: set[bytes] = set()
    saved = total = 0
    for request in requests:
        for count, digest in enumerate(request.blocks):
            if digest not in seen:
                saved += count * block
                break
        else:
            saved += len(request.blocks) * block
        seen.update(request.blocks)
        total += request.prompt_tokens
    return saved / total
