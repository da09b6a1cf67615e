"""The OpenAI dialect's text completions: a text is continued, or scored (`echo` with `logprobs`).

Choices of several prompts are numbered through: choice `index` is `prompt number * n + choice`.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from skerry.errors import InvalidInput, LoraNotSupported
from skerry.wire.openai import MAX_CHOICES, Completion, CompletionRequest
from skerry_edge.api.bodies import Body
from skerry_edge.api.edge_request import EdgeRequest, arrive, read_json
from skerry_edge.api.handler import attended, begin, caller_of, event_stream, job_of
from skerry_edge.api.openai.completion_answers import ChoiceWriter, PromptText, collect, events
from skerry_edge.api.upstream_fields import COMPLETIONS
from skerry_edge.envelopes import JSONBytes, encode, openai_error_event
from skerry_edge.gate.caller import Caller
from skerry_edge.gate.job import Job
from skerry_edge.generation.edge import Edge
from skerry_edge.text.model import TextModel
from skerry_edge.text.prompts import (
    OPENAI_TEMPERATURE,
    output_floor,
    output_limit,
    sampling,
    text_prompt,
)
from skerry_regions.models.catalog import ModelSpec

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_PROMPT_LOGPROBS = 1 << 19  # entries of all prompts: what one answer may take of memory

_body = Body(CompletionRequest, COMPLETIONS)


async def completions(request: EdgeRequest) -> Response:
    """Handle `POST …/v1/completions`."""
    edge, asked = request.edge, await read_json(request, _body)
    caller = caller_of(request)
    await arrive(request, edge.requested(asked.model))
    jobs, prompts = await _jobs(edge, asked, caller)
    choices = await begin(request, *jobs)
    head = Completion(
        id=f"cmpl-{caller.request_id}",
        object="text_completion",
        created=int(edge.wall_clock()),
        model=asked.model,
        choices=[],
    )
    writers = [
        ChoiceWriter(
            jobs[0].text,
            prompt,
            echo=bool(asked.echo),
            with_logprobs=asked.logprobs is not None,
            with_output=asked.max_tokens != 0,
        )
        for prompt in prompts
        for _ in range(asked.n or 1)
    ]
    if not asked.stream:
        answer = await attended(request, caller, collect(choices, writers, head))
        return JSONBytes(encode(answer))
    options = asked.stream_options
    return event_stream(
        request,
        caller,
        choices,
        events(choices, writers, head, include_usage=bool(options and options.include_usage)),
        lambda exc: openai_error_event(exc, caller.request_id),
    )


async def _jobs(
    edge: Edge, asked: CompletionRequest, caller: Caller
) -> tuple[list[Job], list[PromptText]]:
    """Check everything a caller can get wrong, and tokenise."""
    spec, text = edge.served(asked.model)
    if asked.lora is not None:
        raise LoraNotSupported(f"The model {spec.id} does not support LoRA.", param="lora")
    num_choices = asked.n or 1
    if (asked.best_of or num_choices) != num_choices:
        raise InvalidInput("Bad input: best_of must equal n", param="best_of")
    given = prompts_given(asked.prompt)
    if len(given) * num_choices > MAX_CHOICES:
        raise InvalidInput(
            f"Bad input: prompt: {len(given)} prompts with n = {num_choices} are more than "
            f"{MAX_CHOICES} choices",
            param="prompt",
        )
    prompts = [await _prompt(edge, caller.tenant, spec, text, prompt) for prompt in given]
    scored = asked.logprobs if asked.echo else None
    if scored is not None:
        entries = sum(len(prompt.ids) for prompt in prompts) * (1 + scored) * num_choices
        if entries > MAX_PROMPT_LOGPROBS:
            raise InvalidInput(
                f"Bad input: prompt: {entries} log-probabilities of prompt tokens, at most "
                f"{MAX_PROMPT_LOGPROBS} in a request",
                param="prompt",
            )
    return [
        _job(edge, spec, text, asked, caller, prompt.ids, scored) for prompt in prompts
    ], prompts


def _job(
    edge: Edge,
    spec: ModelSpec,
    text: TextModel,
    asked: CompletionRequest,
    caller: Caller,
    prompt_ids: list[int],
    prompt_logprobs: int | None,
) -> Job:
    wanted = asked.max_tokens
    if wanted is None:
        wanted = min(DEFAULT_MAX_TOKENS, max(1, spec.context_window - len(prompt_ids)))
    limit = output_limit(max(1, wanted), len(prompt_ids), spec, edge.limits)
    style = sampling(
        asked,
        text,
        spec.sampling,
        temperature=OPENAI_TEMPERATURE,
        max_tokens=limit,
        min_tokens=output_floor(asked.min_tokens, limit),
        logprobs=asked.logprobs,
    )
    return job_of(
        caller,
        spec,
        text,
        prompt_ids,
        style,
        asked,
        num_choices=asked.n or 1,
        prompt_logprobs=prompt_logprobs,
        tells_stop_token=True,
        is_raw=True,
    )


def prompts_given(
    prompt: str | Sequence[str | int | list[int]], param: str = "prompt"
) -> list[str | list[int]]:
    """Return the prompts of a request: `"…"`, `["…", …]`, `[1, 2]` (one prompt) or `[[1, 2],
    …]`."""
    if isinstance(prompt, str):
        return [prompt]
    token_ids = [each for each in prompt if isinstance(each, int)]
    if len(token_ids) == len(prompt):
        return [token_ids]
    kind = type(prompt[0])
    prompts: list[str | list[int]] = []
    for number, each in enumerate(prompt):
        if isinstance(each, int) or not isinstance(each, kind):
            raise InvalidInput(
                f"Bad input: {param}[{number}]: texts, token ids and lists of them cannot be mixed",
                param=f"{param}[{number}]",
            )
        prompts.append(each)
    return prompts


async def _prompt(
    edge: Edge, tenant: str, spec: ModelSpec, text: TextModel, given: str | list[int]
) -> PromptText:
    if isinstance(given, str):
        ids = await text_prompt(text, spec, given, edge.limits, edge.desk, tenant, raw=True)
        return PromptText(ids, given)
    if not given:
        raise InvalidInput("Bad input: the prompt is empty.", param="prompt")
    wrong = next((each for each in given if not 0 <= each < text.vocab_size), None)
    if wrong is not None:
        raise InvalidInput(
            f"Bad input: prompt: {wrong} is not a token id below {text.vocab_size}", param="prompt"
        )
    return PromptText(given, None)
