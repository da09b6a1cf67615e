"""What of a prompt stays cached, in OpenAI's words: `prompt_cache_options`, breakpoints in
messages, and the older `prompt_cache_retention`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from skerry.wire import CacheBreakpoint, Message
from skerry.wire.openai import CacheOptions, CacheRetention, ChatCompletionRequest
from skerry_edge.gate.caller import Caller
from skerry_edge.generation.edge import Edge
from skerry_edge.output.plan import OutputPlan
from skerry_edge.output.tool_prompts import with_tools
from skerry_edge.text.breakpoints import MOST, Breakpoint, Breakpoints, Turns, outlasting, pins_at
from skerry_edge.text.model import Prompt, TextModel
from skerry_edge.text.prompts import encoded
from skerry_regions.wire.pins import Pin

SIGN: Final = b'"prompt_cache_'  # in every body that says any of it
SECONDS: Final = {"30m": 1800.0, "12h": 43_200.0, "24h": 86_400.0}

Marked = tuple[CacheBreakpoint, Callable[[], Turns] | None]
"""A breakpoint, and what returns the conversation cut there."""


def breakpoints_of(asked: ChatCompletionRequest) -> list[Breakpoint]:
    """Return what of a chat completion's prompt stays cached."""
    marks = [
        (number, end, part.prompt_cache_breakpoint)
        for number, message in enumerate(asked.messages)
        if isinstance(message.content, list)
        for end, part in enumerate(message.content, 1)
        if part.prompt_cache_breakpoint is not None
    ]
    marked: list[Marked] = []
    for number, end, mark in marks[-MOST:]:
        content, cut = asked.messages[number].content, None
        if isinstance(content, list) and (number + 1, end) != (len(asked.messages), len(content)):
            begun = replace(asked.messages[number], content=content[:end])
            cut = partial(list[Message], [*asked.messages[:number], begun])
        marked.append((mark, cut))
    return chosen(asked.prompt_cache_options, asked.prompt_cache_retention, marked)


def chosen(
    options: CacheOptions | None, retention: CacheRetention | None, marked: Sequence[Marked]
) -> list[Breakpoint]:
    """Return the breakpoints that count of those in a conversation, in its order: the latest four,
    of which that at the end of the prompt is one unless `options.mode` is explicit."""
    found: list[Breakpoint] = []
    if options is not None or marked:
        given = options or CacheOptions()
        latest = marked[-(MOST - 1) :] if given.mode == "implicit" else marked[-MOST:]
        found = [Breakpoint(SECONDS[mark.ttl or given.ttl], turns) for mark, turns in latest]
        if given.mode == "implicit":
            found.append(Breakpoint(SECONDS[given.ttl]))
    if retention == "24h":
        found.append(Breakpoint(SECONDS[retention]))
    return found


async def pins_of(
    edge: Edge,
    text: TextModel,
    caller: Caller,
    plan: OutputPlan | None,
    flags: Mapping[str, Any] | None,
    turns: Turns,
    prompt_ids: Sequence[int],
    breakpoints: Breakpoints,
) -> tuple[Pin, ...]:
    """Return the pins of a prompt, made of a conversation, by its breakpoints. Raises what
    `TenantDesk.run` raises."""
    breakpoints = outlasting(breakpoints)
    if all(each.turns is None for each in breakpoints):
        return tuple((len(prompt_ids), each.seconds) for each in breakpoints)

    def lay_out(turns: Turns) -> Prompt:
        if plan is None:
            return text.render(turns, flags=flags)
        turns, tools = with_tools(plan.family, turns, plan.box)
        return text.render(turns, tools=tools, flags=flags)

    def find() -> tuple[Pin, ...]:
        return pins_at(
            breakpoints,
            lay_out(turns),
            lay_out,
            lambda beginning: len(encoded(text, beginning, edge.desk, caller.tenant)),
        )

    return await edge.desk.of(caller.tenant).run(find)
