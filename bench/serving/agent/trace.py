"""An agent's conversation, replayed turn by turn as Anthropic's Messages with rolling breakpoints.

Its tools and system prompt come first and stay, behind a billing line that changes; then the user's
request with the files that it is about, and turns of one call and its result each. The breakpoints
are Claude Code's: the end of the system prompt, and that of the last message. Each turn is
measured:

    read     tokens read from the cache, of all that any earlier turn has computed
    first    time to the first token, against that of a request with this turn's new text alone
             behind the same tools and system prompt; and what of both is not the model's own work,
             by the node's word: longer histories take it longer to attend to. The least that this
             can take is the products of the new tokens with what only the history has, at the
             machine's peak
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from bench.measuring import peaks, stats
from bench.measuring.run import Run
from bench.serving.agent.targets import THREADS, Target
from bench.subjects.long_context import LONG_CONTEXT, PAIR_PRODUCTS
from bench.subjects.platforms import Platform

TOOLS, TURNS, HISTORY = 20, 40, 33_000  # tools; turns; tokens before the first turn
QUICK_TURNS, QUICK_HISTORY = 12, 8_000
CHARACTERS = 4.2  # of a token of such text, about
KEEP = {"type": "ephemeral"}
OURS = "Skerry"
TEXT = """the value of each request is read from its header before any handler runs, so that a
caller who has no token gets an answer at once and costs nothing; def parse(line): return line.split
if error raise from None test fixture assert response status path index node region block"""
WORDS = TEXT.split()


@dataclass(frozen=True)
class Turn:
    """What one request gave."""

    first_seconds: float
    prefill_seconds: float  # of those, in the engine
    prompt_tokens: int
    read_tokens: int


def text(source: random.Random, num_tokens: int) -> str:
    """Return words whose tokens are about as many."""
    said, length = [], 0
    while length < num_tokens * CHARACTERS:
        said.append(source.choice(WORDS))
        length += len(said[-1]) + 1
    return " ".join(said)


def tools(source: random.Random) -> list[dict[str, Any]]:
    """Return the agent's tools, each with a schema of a few parameters."""
    return [
        {
            "name": f"tool_{number}",
            "description": text(source, 60),
            "input_schema": {
                "type": "object",
                "properties": {
                    name: {"type": "string", "description": text(source, 12)}
                    for name in ("path", "query", "limit")
                },
                "required": ["path"],
            },
        }
        for number in range(TOOLS)
    ]


def turns(source: random.Random, number: int, history: int) -> Iterator[list[dict[str, Any]]]:
    """Yield what each turn adds to the messages: the user's request, then calls with results."""
    yield [{"role": "user", "content": [{"type": "text", "text": text(source, history)}]}]
    for turn in range(1, number):
        call: dict[str, Any] = {
            "type": "tool_use",
            "id": f"toolu_{turn}",
            "name": f"tool_{turn % TOOLS}",
        }
        call["input"] = {"path": f"src/{turn}.py"}
        result = {"type": "tool_result", "tool_use_id": call["id"]}
        result["content"] = text(source, source.randrange(60, 300))
        yield [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]


class Agent:
    """One conversation with a platform."""

    def __init__(self, platform: Platform, client: httpx.Client, seed: int) -> None:
        source = random.Random(seed)
        self._platform, self._client = platform, client
        self._tools, self._system = tools(source), text(source, 2500)
        self._number = 0

    def ask(self, messages: list[dict[str, Any]]) -> Turn:
        """Send the messages, and read the answer's stream."""
        self._number += 1
        billing = f"x-anthropic-billing-header: cc_version=2.1.117; cch={self._number:05x};"
        body = {
            "model": LONG_CONTEXT,
            "max_tokens": 2,
            "stream": True,
            "tools": self._tools,
            "tool_choice": {"type": "none"},
            "system": [
                {"type": "text", "text": billing},
                {"type": "text", "text": self._system, "cache_control": KEEP},
            ],
            "messages": [*messages[:-1], _marked(messages[-1])],
            "metadata": {"user_id": "agent"},
        }
        headers = {"authorization": f"Bearer {self._platform.token}"}
        url = self._platform.route("v1/messages")
        started, first, usage = time.perf_counter(), 0.0, dict[str, int]()
        with self._client.stream("POST", url, json=body, headers=headers) as answer:
            id = answer.headers["x-request-id"]
            if answer.is_error:
                answer.read()
                raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if not first and event["type"] != "message_start":
                    first = time.perf_counter() - started
                if event["type"] == "error":
                    raise RuntimeError(f"{event['error']}")
                usage = event.get("usage", usage)
        read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
        prompt = usage["input_tokens"] + read + written
        return Turn(first, self._prefill(id, headers), prompt, read)

    def _prefill(self, id: str, headers: dict[str, str]) -> float:
        """Return the seconds that the node worked on a request's prompt, by its trace."""
        for _ in range(100):
            found = self._client.get(self._platform.route(f"traces/{id}"), headers=headers)
            if found.is_success:
                trace = found.json()
                spans = trace.get("result", trace)["spans"]
                if times := [each["seconds"] for each in spans if each["name"] == "prefill"]:
                    return float(times[0])
            time.sleep(0.01)  # it is whole a moment after the answer
        raise RuntimeError(f"the trace of {id} has no prefill")


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    *blocks, last = message["content"]
    return message | {"content": [*blocks, last | {"cache_control": KEEP}]}


def measure(run: Run, target: Target) -> list[stats.Cell]:
    """Replay the trace; print and return what its turns gave."""
    number, history = (QUICK_TURNS, QUICK_HISTORY) if run.is_quick else (TURNS, HISTORY)
    name = f"{target.name}: "
    share = stats.Cell(name + "reads of an endless cache's", "%")
    uncached = stats.Cell(name + "tokens computed for a turn", "tokens")
    first = stats.Cell(name + "first token", "ms")
    alone = stats.Cell(name + "first token without history", "ms")
    factor = stats.Cell(name + "first token, of that without history", "times")
    own = stats.Cell(name + "prefill, of that without history", "times")
    least = stats.Cell(name + "the least that it could be", "times")
    beside = stats.Cell(name + "of it beside the prefill", "ms")
    beside_alone = stats.Cell(name + "of that without history beside the prefill", "ms")
    peak = 1e9 * max(peaks.float_peak(THREADS) for _ in range(5))  # beside other work
    source = random.Random(7)
    messages: list[dict[str, Any]] = []
    total_read = total_endless = 0
    with httpx.Client(timeout=600.0) as client:
        agent = Agent(target.platform, client, seed=7)
        agent.ask([{"role": "user", "content": [{"type": "text", "text": "Hello."}]}])
        before = 0  # tokens of the prompt before: what this one shares with it
        for place, added in enumerate(turns(source, number, history)):
            messages += added
            turn = agent.ask(messages)
            if place:
                short = agent.ask([_as_text(added[-1]["content"][0], place)])
                total_read += turn.read_tokens
                total_endless += before
                share.add(OURS, 100 * turn.read_tokens / before)
                uncached.add(OURS, turn.prompt_tokens - turn.read_tokens)
                first.add(OURS, 1e3 * turn.first_seconds)
                alone.add(OURS, 1e3 * short.first_seconds)
                factor.add(OURS, turn.first_seconds / short.first_seconds)
                own.add(OURS, turn.prefill_seconds / short.prefill_seconds)
                least.add(OURS, 1 + _added_products(turn, short) / peak / short.prefill_seconds)
                beside.add(OURS, 1e3 * (turn.first_seconds - turn.prefill_seconds))
                beside_alone.add(OURS, 1e3 * (short.first_seconds - short.prefill_seconds))
            before = turn.prompt_tokens
    cells = [share, uncached, first, alone, factor, own, least, beside, beside_alone]
    run.console.print(stats.table(f"an agent's {number} turns, {target.name}", cells, OURS, []))
    run.console.print(
        f"{target.name}: {total_read:,} tokens read of {total_endless:,} "
        f"({100 * total_read / total_endless:.2f} %), {before:,} in the last prompt"
    )
    return cells


def _added_products(turn: Turn, short: Turn) -> int:
    """Return the products of a turn's new tokens with those that only its history has."""
    new = turn.prompt_tokens - turn.read_tokens
    return new * (turn.read_tokens - short.read_tokens) * PAIR_PRODUCTS


def _as_text(result: dict[str, Any], place: int) -> dict[str, Any]:
    """Return a tool's result as a user's turn that no conversation began with before."""
    said = {"type": "text", "text": f"{place}: {result['content']}"}
    return {"role": "user", "content": [said]}
