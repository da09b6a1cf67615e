"""What it saves to remember the token ids of a shared prefix: processor time of one edge.

    python -m bench.serving.prompt_memory [--json FILE]

A conversation of the default model with a system prompt of 2,000, 6,000 and 24,000 characters and
six turns; the last question is another one each time. "anew" tokenises all of it, "remembered" only
what follows the known parts; the layout by the chat template is timed by itself, and always paid.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench.measuring import machine, stats
from bench.server import WORDS
from bench.subjects.models import default_model
from skerry_edge.text.model import TextModel
from skerry_edge.text.token_cache import PrefixMemory

LENGTHS = (2_000, 6_000, 24_000)  # characters of the system prompt
ROUNDS = 200
TENANT = "bench"


def conversation(length: int, number: int) -> list[dict[str, str]]:
    text = " ".join(WORDS[i * i % len(WORDS)] for i in range(length // 5))[:length]
    turns = [{"role": "system", "content": text}]
    for turn in range(3):
        turns.append({"role": "user", "content": f"Question {turn} about the {WORDS[turn]}?"})
        turns.append({"role": "assistant", "content": f"An answer of some length. {text[:300]}"})
    return [*turns, {"role": "user", "content": f"And the {number}th thing?"}]


def microseconds(work: Callable[[], object]) -> float:
    start = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - start) / 1e3


def measure(text: TextModel) -> list[stats.Cell]:
    cells = []
    for length in LENGTHS:
        memory = PrefixMemory()
        cell = stats.Cell(f"{length:,} characters", "us")
        for number in range(ROUNDS + 1):
            messages = conversation(length, number)
            prompt = text.render(messages)
            taken = {
                "anew": microseconds(lambda: text.encode(prompt)),  # noqa: B023
                "remembered": microseconds(lambda: memory.encode(text, TENANT, prompt)),  # noqa: B023
                "layout": microseconds(lambda: text.render(messages)),  # noqa: B023
            }
            if memory.encode(text, TENANT, prompt) != text.encode(prompt):
                raise RuntimeError("remembered ids differ from those computed anew")
            if number:  # the first one fills the memory
                for system, value in taken.items():
                    cell.add(system, value)
        cells.append(cell)
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    options = parser.parse_args()
    console = Console()
    description = machine.describe()
    spec, files = default_model()
    cells = measure(TextModel(files, context_window=spec.context_window))
    console.print(stats.table("tokenising a prompt", cells, "remembered", ["anew", "layout"]))
    stats.write(options.json, {"machine": description, "rows": stats.rows(cells)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
