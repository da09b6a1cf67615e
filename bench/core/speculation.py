"""What drafting from the transcript brings: decoding with and without, on prompts of several kinds.

    python -m bench.core.speculation [--quick] [--json FILE]

The same requests, one engine each way over the same runner, interleaved; the first thing checked is
that all give the same tokens. A second engine without drafts shows what chance makes of equals.
Times begin when every stream has its first token. "repeat" asks for a file of source code once more
with a change, "summarise" for a text in short, "chat" for something that is in no prompt: there
speculation must not lose.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console

from bench.engine import THREADS, undisturbed
from bench.measuring import stats
from bench.measuring.run import Run, parser
from bench.subjects.models import default_model, home
from bench.subjects.peers import ROOT
from bench.subjects.requests import Request, SamplingParams
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.numba_cpu import NumbaRunner
from skerry_edge.text.model import TextModel

WITH, WITHOUT, AGAIN = "with", "without", "without again"
MAX_TOKENS, QUICK_TOKENS = 160, 64  # of an answer
NUM_BLOCKS = 512

_GREEDY, _SAMPLED = SamplingParams(), SamplingParams(temperature=0.8, top_p=0.95)
_CODE = (ROOT / "core/skerry_core/engine/fairness.py").read_text()
_TEXT = (ROOT / "docs/runners.md").read_text()[:4000]
_REPEAT = f"Repeat this file whole, with the class named `Shares`:\n\n```python\n{_CODE}\n```"
_SUMMARISE = f"Summarise this text in a few sentences:\n\n{_TEXT}"
_CHAT = (
    "Tell me a story about a lighthouse keeper who finds a letter.",
    "Why is the sky blue, and why are sunsets red?",
    "Write a short poem about the sea in winter.",
    "What should I think of when I buy a used bicycle?",
)


@dataclass(frozen=True)
class Case:
    name: str
    prompts: Sequence[str]
    sampling: SamplingParams
    streams: int


CASES = (
    *(
        Case(f"{kind}, {style}, {streams} stream{'s' * (streams > 1)}", prompts, sampling, streams)
        for kind, prompts in (("repeat", (_REPEAT,)), ("summarise", (_SUMMARISE,)), ("chat", _CHAT))
        for style, sampling in (("greedy", _GREEDY), ("sampled", _SAMPLED))
        for streams in (1, 8)
    ),
    Case("chat, sampled, 32 streams", _CHAT, _SAMPLED, 32),
)


class Side:
    """One engine over the common runner."""

    def __init__(self, runner: NumbaRunner, config: EngineConfig) -> None:
        self._engine = Engine(runner, config, model_key=b"bench")

    def run(self, requests: Sequence[Request]) -> tuple[float, list[list[int]]]:
        """Seconds of decoding, and each answer's tokens."""
        answers: dict[str, list[int]] = {request.id: [] for request in requests}
        for request in requests:
            self._engine.add(request.sequence())
        begun: float | None = None
        before = 0
        while self._engine.has_work:
            if begun is None and all(answers.values()):
                begun, before = time.perf_counter(), sum(map(len, answers.values()))
            for output in self._engine.step():
                answers[output.request_id] += output.token_ids
        if begun is None:
            raise RuntimeError("the answers ended with their first tokens")
        seconds = time.perf_counter() - begun
        made = sum(map(len, answers.values())) - before
        return seconds / made, list(answers.values())

    @property
    def drafts(self) -> tuple[int, int]:
        """Drafted and accepted so far."""
        now = self._engine.statistics()
        return now.drafted_tokens, now.accepted_tokens


def requests(case: Case, text: TextModel, max_tokens: int, salt: int) -> list[Request]:
    """Under a cache key of their own: streams share the prompt, and no sample profits from others.

    The sides' engines write to the same blocks of one runner, so neither may look up old ones.
    """
    made = []
    for number in range(case.streams):
        prompt = case.prompts[number % len(case.prompts)]
        ids = text.encode(text.render([{"role": "user", "content": prompt}]))
        sampling = replace(
            case.sampling,
            seed=salt * 1000 + number,
            max_tokens=max_tokens,
            stop_token_ids=tuple(text.stop_token_ids),
        )
        key = f"{case.name} {salt}".encode()
        made.append(
            Request(id=str(number), prompt_ids=tuple(ids), sampling=sampling, cache_key=key)
        )
    return made


def measure(
    sides: dict[str, Side], text: TextModel, max_tokens: int, rounds: int, console: Console
) -> tuple[list[stats.Cell], dict[str, list[int]], int]:
    """Every case in every round; how many tokens were drafted, and how many right, by case."""
    cells = {case.name: stats.Cell(case.name, "tok/s") for case in CASES}
    drafts = {case.name: [0, 0] for case in CASES}
    disturbed = 0
    for number in range(rounds + 1):
        for case in CASES:
            before = sides[WITH].drafts
            told: dict[str, list[list[int]]] = {}
            for name in list(sides)[:: 1 if number % 2 else -1]:
                asked = requests(case, text, max_tokens, number)
                with console.status(f"round {number} of {rounds}: {case.name}, {name}"):
                    (seconds, told[name]), quiet = undisturbed(
                        lambda s=sides[name], a=asked: s.run(a), [], attempts=2
                    )
                if number:  # the first one warms up
                    cells[case.name].add(name, 1 / seconds)
                    disturbed += not quiet
            if not told[WITH] == told[WITHOUT] == told[AGAIN]:
                raise RuntimeError(f"{case.name}: speculation changed the answer")
            for i, after in enumerate(sides[WITH].drafts):
                drafts[case.name][i] += after - before[i]
    return list(cells.values()), drafts, disturbed


def main() -> int:
    run = Run(
        parser(__doc__, quick="3 rounds of shorter answers instead of 7").parse_args(),
        threads=THREADS,
    )
    spec, files = default_model()
    runner = NumbaRunner.open(
        files.weights, num_blocks=NUM_BLOCKS, threads=THREADS, cache_dir=home() / "cache"
    )
    runner.warm_up(lambda what, share: None)
    sides = {
        WITH: Side(runner, EngineConfig()),
        WITHOUT: Side(runner, EngineConfig(max_draft_tokens=0)),
        AGAIN: Side(runner, EngineConfig(max_draft_tokens=0)),
    }
    text = TextModel(files, context_window=spec.context_window)
    rounds, max_tokens = (3, QUICK_TOKENS) if run.is_quick else (7, MAX_TOKENS)
    cells, drafts, disturbed = measure(sides, text, max_tokens, rounds, run.console)
    run.console.print(stats.table("speculation, tok/s, medians", cells, WITHOUT, [WITH, AGAIN]))
    for name, (drafted, accepted) in drafts.items():
        run.console.print(f"{name}: {drafted} tokens were drafted in all, {accepted} of them right")
    if disturbed:
        run.console.print(f"{disturbed} samples stayed disturbed by foreign load")
    run.write(cells, drafts=drafts, disturbed=disturbed)
    runner.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
