"""Whether first answers make sense: trivial questions to the default model, with its defaults.

    python -m bench.serving.quality [--quick] [--json FILE]

`bench/data/questions.json` has 40 in two halves: settings were chosen by the first, and the second
was not looked at for anything. Each is asked in OpenAI's chat and as the `prompt` of `ai.run`, with
5 seeds and nothing else stated but 40 tokens at most; and, beside that, as the beginning of a
sentence. An answer is right where one of the accepted words is in it, as a whole word.
`--set temperature=1` states a field of the request, to compare settings.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from bench.measuring import machine, stats
from bench.subjects.models import MODEL
from bench.subjects.platforms import Platform, platform

QUESTIONS = Path(__file__).parents[1] / "data" / "questions.json"
FORMS = ("chat", "prompt")  # that count
BEGUN = "begun sentence"
MAX_TOKENS = 40
AT_ONCE = 16  # requests
WANTED = 0.8  # share of right answers in the unseen half


@dataclass(frozen=True, slots=True)
class Item:
    """A question in both forms, and the words of which one makes an answer right."""

    half: str
    question: str
    begun: str  # the sentence that answers it, without its end
    accepted: tuple[str, ...]

    def is_right(self, answer: str) -> bool:
        return any(
            re.search(rf"\b{re.escape(word)}\b", answer, re.IGNORECASE) for word in self.accepted
        )


@dataclass(frozen=True, slots=True)
class Answer:
    item: Item
    form: str
    seed: int
    text: str

    @property
    def is_right(self) -> bool:
        return self.item.is_right(self.text)


def items() -> list[Item]:
    """Return the questions of both halves."""
    return [
        Item(half, each["question"], each["begun"], tuple(each["accepted"]))
        for half, questions in json.loads(QUESTIONS.read_text()).items()
        for each in questions
    ]


async def ask_all(made: Platform, seeds: int, stated: dict[str, Any]) -> list[Answer]:
    """Ask every question in each form with each seed."""
    gate = asyncio.Semaphore(AT_ONCE)
    headers = {"Authorization": f"Bearer {made.token}"}
    async with httpx.AsyncClient(headers=headers, timeout=300, trust_env=False) as client:

        async def ask(item: Item, form: str, seed: int) -> Answer:
            common = {"max_tokens": MAX_TOKENS, "seed": seed, **stated}
            if form == "chat":
                url = made.route("v1/chat/completions")
                body = {"model": MODEL, "messages": [{"role": "user", "content": item.question}]}
            else:
                url = made.route(f"run/{MODEL}")
                body = {"prompt": item.begun if form == BEGUN else item.question}
            async with gate:
                response = await client.post(url, json=body | common)
            response.raise_for_status()
            told = response.json()
            if form == "chat":
                return Answer(item, form, seed, told["choices"][0]["message"]["content"])
            return Answer(item, form, seed, told["result"]["response"])

        return await asyncio.gather(
            *(
                ask(item, form, seed)
                for item in items()
                for form in (*FORMS, BEGUN)
                for seed in range(seeds)
            )
        )


def share(answers: list[Answer], **wanted: str) -> tuple[int, int]:
    """Return how many answers of a half or form are right, of how many."""
    chosen = [
        answer
        for answer in answers
        if wanted.get("half", answer.item.half) == answer.item.half
        and wanted.get("form", answer.form) == answer.form
    ]
    return sum(answer.is_right for answer in chosen), len(chosen)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="2 seeds instead of 5")
    parser.add_argument("--wrong", action="store_true", help="show wrong answers of the first half")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=JSON")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every answer to FILE")
    options = parser.parse_args()
    stated = {name: json.loads(value) for name, _, value in (s.partition("=") for s in options.set)}
    console = Console()
    seeds = 2 if options.quick else 5
    with (
        platform(f"--model={MODEL}", "--port=0", f"--threads={options.threads}") as made,
        console.status("asking"),
    ):
        answers = asyncio.run(ask_all(made, seeds, stated))
    counted = [answer for answer in answers if answer.form in FORMS]
    table = Table("half", *FORMS, "both", BEGUN, box=None)
    for half in ("chosen by", "unseen"):
        cells = [share(answers, half=half, form=form) for form in FORMS]
        cells += [share(counted, half=half), share(answers, half=half, form=BEGUN)]
        table.add_row(half, *(f"{right}/{of} {right / of:.0%}" for right, of in cells))
    console.print(table)
    if options.wrong:
        for answer in answers:
            if answer.item.half == "chosen by" and not answer.is_right:
                console.print(
                    f"{answer.form}: {answer.item.question} {answer.text!r}", markup=False
                )
    rows = [
        {"half": a.item.half, "form": a.form, "seed": a.seed, "right": a.is_right, "text": a.text}
        for a in answers
    ]
    stats.write(options.json, {"machine": machine.describe(), "set": stated, "rows": rows})
    right, of = share(counted, half="unseen")
    return 0 if right / of >= WANTED else 1


if __name__ == "__main__":
    sys.exit(main())
