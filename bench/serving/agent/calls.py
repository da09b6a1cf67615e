"""Twenty tool calls from far away: over a WebSocket, and over HTTP by the pool of OpenAI's client.

The agent's history is in the cache before; each turn brings the result of a call, and waits for the
first token. Over HTTP it goes on from the response before by its id, or sends the whole history
again at a home's rate; over the WebSocket by id, without any being stored. Both ways take turns,
with conversations of their own.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from openai import OpenAI
from openai.resources.responses.responses import ResponsesConnection

from bench.measuring import stats
from bench.measuring.run import Run
from bench.serving.agent.targets import Target
from bench.serving.agent.trace import TOOLS, text, tools
from bench.subjects.long_context import LONG_CONTEXT
from skerry_regions.address import Address
from skerry_regions.process.emulation import Relay

CALLS, ROUNDS, QUICK_ROUNDS = 20, 5, 2
HISTORY, QUICK_HISTORY = 33_000, 8_000  # tokens
ROUND_TRIP = 0.080  # seconds
RATE = 20e6 / 8  # bytes a second, where the history is sent again
SOCKET, HTTP = "WebSocket", "HTTP"
FIRST: Final = frozenset(("response.output_text.delta", "response.completed"))

Items = list[dict[str, Any]]
Turn = Callable[[Items, Items, str | None], tuple[str, float]]
"""Sends the history, what is new of it and the id of the response before; returns the id of its
response, and the seconds to its first token."""


@contextmanager
def far_from(url: str, bytes_per_second: float) -> Generator[str]:
    """Give an address that leads there, half a round trip later; runs on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="relay")
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    parts = urlsplit(url)
    far = Address(host=parts.hostname or "", port=parts.port or 80)
    near = _free_address()
    relay = Relay(near, far, ROUND_TRIP / 2, bytes_per_second)
    try:
        run(relay.listen())
        yield f"http://{near.host}:{near.port}"
        run(relay.close())
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _free_address() -> Address:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return Address(host="127.0.0.1", port=server.getsockname()[1])


class Conversation:
    """The items of one agent, whose results of tools are its own."""

    def __init__(self, history: str, seed: int) -> None:
        self._source = random.Random(seed)
        self.items: Items = [{"role": "user", "content": history}]

    def add(self, turn: int) -> Items:
        """Add a call and its result; returns them."""
        call_id = f"call_{turn}"
        call = {"type": "function_call", "call_id": call_id, "name": f"tool_{turn % TOOLS}"}
        said = text(self._source, self._source.randrange(60, 300))
        new = [
            call | {"arguments": json.dumps({"path": f"src/{turn}.py"})},
            {"type": "function_call_output", "call_id": call_id, "output": said},
        ]
        self.items += new
        return new


def measure(run: Run, target: Target) -> list[stats.Cell]:
    """Print and return what both ways took."""
    history = text(random.Random(11), QUICK_HISTORY if run.is_quick else HISTORY)
    flat = [_flat(tool) for tool in tools(random.Random(7))]
    fixed: dict[str, Any] = {"model": LONG_CONTEXT, "tools": flat, "tool_choice": "none"}
    fixed |= {"max_output_tokens": 2, "instructions": text(random.Random(5), 2500)}
    cells: list[stats.Cell] = []
    for name, rate, resends in (
        ("chained by id", float("inf"), False), ("history again at 20 Mbit/s", RATE, True),
    ):  # fmt: skip
        whole = stats.Cell(f"{target.name}: {CALLS} calls, HTTP {name}", "s")
        first = stats.Cell(f"{target.name}: first token, HTTP {name}", "ms")
        with far_from(target.platform.config["url"], rate) as url:
            base = target.platform.route("v1", url)
            with OpenAI(base_url=base, api_key=target.platform.token, timeout=600.0) as client:
                for round_ in range(-1, QUICK_ROUNDS if run.is_quick else ROUNDS):
                    talks = {
                        system: Conversation(history, 100 * round_ + 2 * number + resends)
                        for number, system in enumerate((SOCKET, HTTP))
                    }
                    for system, seconds in _converse(client, fixed, talks, resends=resends).items():
                        if round_ >= 0:  # before that, caches and connections are made
                            whole.add(system, sum(seconds))
                            first.add(system, 1e3 * stats.percentile(seconds, 0.5))
        cells += [whole, first]
    run.console.print(
        stats.table(f"{CALLS} tool calls at 80 ms, {target.name}", cells, SOCKET, [HTTP])
    )
    return cells


def _converse(
    client: OpenAI, fixed: dict[str, Any], talks: dict[str, Conversation], *, resends: bool
) -> dict[str, list[float]]:
    """Return the seconds to the first token of each call's turn; both ways take turns, so that a
    slow moment of the machine hits both."""
    with client.responses.connect() as connection:
        ways: dict[str, Turn] = {
            SOCKET: _over_socket(connection, fixed),
            HTTP: _over_http(client, fixed, resends=resends),
        }
        last = {
            name: turn(talks[name].items, talks[name].items, None) for name, turn in ways.items()
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(CALLS):
            for name in (SOCKET, HTTP) if number % 2 else (HTTP, SOCKET):
                new = talks[name].add(number)
                last[name] = ways[name](talks[name].items, new, last[name][0])
                seconds[name].append(last[name][1])
        return seconds


def _over_http(client: OpenAI, fixed: dict[str, Any], *, resends: bool) -> Turn:
    create: Any = client.responses.create

    def turn(items: Items, new: Items, previous: str | None) -> tuple[str, float]:
        asked: dict[str, Any] = {"input": items, "store": False} if resends else {"input": new}
        if previous is not None and not resends:
            asked["previous_response_id"] = previous
        began, first, id = time.perf_counter(), 0.0, ""
        for event in create(**fixed, **asked, stream=True):
            if not first and event.type in FIRST:
                first = time.perf_counter() - began
            if event.type == "response.completed":
                id = event.response.id
        return id, first

    return turn


def _over_socket(connection: ResponsesConnection, fixed: dict[str, Any]) -> Turn:
    create: Any = connection.response.create

    def turn(items: Items, new: Items, previous: str | None) -> tuple[str, float]:
        began, first = time.perf_counter(), 0.0
        goes_on = {} if previous is None else {"previous_response_id": previous}
        create(**fixed, input=new, store=False, **goes_on)
        for event in connection:
            if event.type == "error":
                raise RuntimeError(f"{event}")
            if not first and event.type in FIRST:
                first = time.perf_counter() - began
            if event.type == "response.completed":
                return event.response.id, first
        raise RuntimeError("the connection has ended")

    return turn


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as Responses have it."""
    named = {name: tool[name] for name in ("name", "description")}
    return {"type": "function", **named, "parameters": tool["input_schema"]}
