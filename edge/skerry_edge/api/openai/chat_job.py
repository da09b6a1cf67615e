"""What a chat completion wants computed; Anthropic's Messages and Responses are prepared as one."""

from __future__ import annotations

from skerry.errors import InvalidInput, LoraNotSupported
from skerry.wire.openai import ChatCompletionRequest
from skerry_edge.api.handler import job_of
from skerry_edge.api.openai.prompt_cache import pins_of
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.job import Job
from skerry_edge.generation.edge import Edge
from skerry_edge.output.tool_prompts import with_tools
from skerry_edge.text.breakpoints import Breakpoints
from skerry_edge.text.prompts import (
    OPENAI_TEMPERATURE,
    chat_prompt,
    is_plain,
    output_floor,
    output_limit,
    sampling,
    says_thinking,
)
from skerry_edge.text.thinking import thinking
from skerry_regions.wire.pins import Pin


async def chat_job(
    edge: Edge,
    asked: ChatCompletionRequest,
    caller: Caller,
    breakpoints: Breakpoints = (),
) -> Job:
    """Check everything a caller can get wrong, and tokenise; the prompt stays cached up to
    `breakpoints`."""
    spec, text = edge.served(asked.model)
    if asked.lora is not None:
        raise LoraNotSupported(f"The model {spec.id} does not support LoRA.", param="lora")
    if asked.top_logprobs and not asked.logprobs:
        raise InvalidInput(
            "Bad input: top_logprobs: only where logprobs is true", param="top_logprobs"
        )
    plan, messages, tools = None, asked.messages, None
    is_strict = asked.options is not None and bool(asked.options.strict)
    wanted = thinking(asked, text, is_strict=is_strict) if says_thinking(asked) else None
    flags = None if wanted is None else wanted.flags
    if not is_plain(asked, asked.messages):
        desk = edge.desk.of(caller.tenant)
        plan = await edge.planner.plan(desk, text, asked, is_strict=is_strict)
        messages, tools = with_tools(plan.family, asked.messages, plan.box)
    prompt_ids = await chat_prompt(
        text, spec, messages, edge.limits, edge.desk, caller.tenant, tools, flags
    )
    pins: tuple[Pin, ...] = ()
    if breakpoints:
        turns = asked.messages
        pins = await pins_of(edge, text, caller, plan, flags, turns, prompt_ids, breakpoints)
    param = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
    limit = output_limit(
        asked.max_completion_tokens or asked.max_tokens, len(prompt_ids), spec, edge.limits, param
    )
    style = sampling(
        asked,
        text,
        spec.sampling,
        temperature=OPENAI_TEMPERATURE,
        max_tokens=limit,
        min_tokens=output_floor(asked.min_tokens, limit),
        logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
    )
    return job_of(
        caller,
        spec,
        text,
        prompt_ids,
        style,
        asked,
        num_choices=asked.n or 1,
        plan=plan,
        pins=pins,
        thinking=wanted,
    )
