"""Whether a tenant's time to first token depends on another tenant's prompts.

    python -m bench.serving.isolation [--pairs 200] [--json FILE]

    own first      tenant A's prompt that nobody has sent before
    own again      the same prompt of A's once more
    others' same   the same prompt, sent by tenant B after A
    others' new    a prompt of B's that nobody has sent before

The four come round by round, the last three in random order, one at a time, over HTTP against
`skerry up` with the default model. "Own again" must be faster than "own first"; "others' same" and
"others' new" must look alike (Mann-Whitney).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.engine import THREADS
from bench.measuring import machine, stats
from bench.measuring.load import concurrent
from bench.measuring.rank_test import mann_whitney
from bench.server import WORDS, Server, skerry_server
from bench.subjects.models import MODEL

PAIRS = 200
PROMPT_WORDS = 90  # with its beginning about 150 tokens: two blocks and a rest
SAME = 0.01  # two sets of times with a higher p are taken for one


@dataclass(frozen=True)
class Verdict:
    """p-values; `is_isolated` is what is claimed of them."""

    own: float  # "again" against "first"
    others: float  # "same" against "new"
    is_faster_again: bool

    @property
    def is_isolated(self) -> bool:
        return self.own < SAME < self.others and self.is_faster_again


def prompt(chance: random.Random) -> dict[str, Any]:
    """A request whose first tokens are its own already."""
    words = " ".join(chance.choice(WORDS) for _ in range(PROMPT_WORDS))
    text = f"{chance.getrandbits(64):016x} {words}"
    return {
        "model": MODEL,
        "messages": [{"role": "system", "content": text}, {"role": "user", "content": "Go on."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 1,
        "min_tokens": 1,  # so that there is a token to be timed
        "temperature": 0,
    }


def of_another_account(server: Server) -> Server:
    """The same server, for a tenant that is new to it."""
    create = [str(Path(sys.executable).with_name("skerry")), "tokens", "create", "--account", "new"]
    env = {**os.environ, "SKERRY_HOME": str(server.home)}
    token = subprocess.run(create, env=env, check=True, capture_output=True, text=True).stdout
    url = server.url.partition("/client/")[0] + "/v1/chat/completions"
    return dataclasses.replace(server, url=url, token=token.strip())


def first_token(server: Server, body: dict[str, Any]) -> float:
    """Milliseconds."""
    [times] = asyncio.run(concurrent(server.url, server.token, [body]))
    return times.ttft * 1e3


def measure(first: Server, second: Server, pairs: int, chance: random.Random) -> stats.Cell:
    """Times of all four kinds, in the same rounds."""
    cell = stats.Cell("time to first token", "ms")
    for number in range(pairs + 1):  # the first one warms up
        shared = prompt(chance)
        asked = [
            ("own again", first, shared),
            ("others' same", second, shared),
            ("others' new", second, prompt(chance)),
        ]
        chance.shuffle(asked)
        for kind, server, body in [("own first", first, shared), *asked]:
            taken = first_token(server, body)
            if number:
                cell.add(kind, taken)
    return cell


def judge(cell: stats.Cell) -> Verdict:
    own, again = cell.samples["own first"], cell.samples["own again"]
    return Verdict(
        own=mann_whitney(own, again),
        others=mann_whitney(cell.samples["others' same"], cell.samples["others' new"]),
        is_faster_again=cell.median("own again") < cell.median("own first"),
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    options = parser.parse_args()
    console = Console()
    description = machine.describe()
    stats.heading(console, description, machine.limits(THREADS))
    with skerry_server() as first:
        second = of_another_account(first)
        cell = measure(first, second, options.pairs, random.Random(options.seed))
    verdict = judge(cell)
    for kind in cell.samples:
        console.print(f"{kind:14} median {cell.median(kind):7.1f} ms")
    console.print(f"own first and again: p = {verdict.own:.3g}")
    console.print(f"others' same and new: p = {verdict.others:.3g}")
    stats.write(
        options.json,
        {
            "machine": description,
            "rows": stats.rows([cell]),
            "p": {"own": verdict.own, "others": verdict.others},
        },
    )
    return 0 if verdict.is_isolated else 1


if __name__ == "__main__":
    sys.exit(main())
