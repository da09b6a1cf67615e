"""Public request traces (`bench/data`), and synthetic ones for tests.

Times in seconds from the start of the trace; a block is the trace's own unit of shared prefixes.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from random import Random

DATA = Path(__file__).parent.parent / "data"
MOONCAKE_BLOCK = 512  # tokens per hash id
MOONCAKE_TICK = 3.0  # seconds that its times are rounded to


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request. Equal `blocks` at equal positions are equal prefixes."""

    arrival: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[bytes, ...] = ()


def mooncake(name: str) -> list[TraceRequest]:
    """`conversation` or `synthetic`, at native speed."""
    requests = []
    with gzip.open(DATA / f"mooncake_{name}.jsonl.gz", "rt") as lines:
        for line in lines:
            row = json.loads(line)
            full = row["input_length"] // MOONCAKE_BLOCK  # a part of a block is not shareable
            requests.append(
                TraceRequest(
                    arrival=row["timestamp"] / 1000,
                    prompt_tokens=row["input_length"],
                    output_tokens=row["output_length"],
                    blocks=tuple(i.to_bytes(8, "big") for i in row["hash_ids"][:full]),
                )
            )
    return requests


def spread(trace: Sequence[TraceRequest], rng: Random, tick: float) -> list[TraceRequest]:
    """The trace with its times, which were rounded down to a `tick`, anywhere within it.

    Mooncake's are rounded to 3 s: ten requests at once that did not come at once.
    """
    moved = [replace(each, arrival=each.arrival + rng.uniform(0, tick)) for each in trace]
    return sorted(moved, key=attrgetter("arrival"))


def azure(name: str) -> list[TraceRequest]:
    """`code` or `conv` of 2023, at native speed; knows nothing of shared prefixes."""
    with gzip.open(DATA / f"azure_llm_2023_{name}.csv.gz", "rt") as lines:
        rows = list(csv.DictReader(lines))
    start = datetime.fromisoformat(rows[0]["TIMESTAMP"][:26])
    return [
        TraceRequest(
            arrival=(datetime.fromisoformat(row["TIMESTAMP"][:26]) - start).total_seconds(),
            prompt_tokens=int(row["ContextTokens"]),
            output_tokens=int(row["GeneratedTokens"]),
        )
        for row in rows
    ]


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
    """The share of prompt tokens that one infinite cache would save: no policy can beat it."""
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
