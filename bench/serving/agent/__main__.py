"""What an agent costs: a trace of 40 turns with 20 tools is replayed, with its prompt cached.

    python -m bench.serving.agent [--quick] [--only NAME] [--json FILE]

    trace    cache reads against those of an endless cache, and first tokens against those of a
             turn without history; with the billing line of Claude Code in front
    calls    20 tool calls at 80 ms: a WebSocket against the pool of OpenAI's client, which goes on
             by id, or sends the history again at 20 Mbit/s

Each against one process, `examples/split.yaml` and three regions, which run a model of random
weights with 131,072 positions; what it says means nothing, and the trace brings its own answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final

from bench.measuring import stats
from bench.measuring.run import Run, parser
from bench.serving.agent import calls, trace
from bench.serving.agent.targets import Target, targets

PARTS: Final[Mapping[str, Callable[[Run, Target], list[stats.Cell]]]] = {
    "trace": trace.measure,
    "calls": calls.measure,
}


def main(arguments: list[str]) -> None:
    options = parser(__doc__, quick="8,000 tokens of history in 12 turns, and one process alone")
    options.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME")
    given = options.parse_args(arguments)
    run = Run(given)
    cells: list[stats.Cell] = []
    for target in targets(is_quick=run.is_quick):
        with target.running():
            for name in given.only:
                cells += PARTS[name](run, target)
    run.write(cells)


if __name__ == "__main__":
    main(sys.argv[1:])
