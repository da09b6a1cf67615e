"""From a request's words to token ids and sampling parameters, every length checked on the way.

Texts are refused by their length in characters before anything expensive looks at them, and long
ones are tokenised on a thread, so that one request cannot hold up the streams of the others.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from skerry.errors import InvalidInput, PromptTooLong, TaskNotSupported
from skerry.wire import Message
from skerry_edge.limits import Limits
from skerry_edge.telemetry import tracing
from skerry_edge.text.model import TextModel
from skerry_edge.text.token_cache import TenantMemory
from skerry_edge.whole_numbers import whole_number
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.wire.protocol import Sampling

INLINE_CHARS = 16 * 1024  # tokenised on the event loop: about 5 ms; more goes to a thread
SEED_MASK = (1 << 64) - 1


class SamplingRequest(Protocol):
    """The fields that both dialects' requests share."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    seed: int | None
    stop: str | list[str] | None
    logit_bias: dict[str, float] | None


def content_text(message: Message) -> str:
    """A message's content as one string; parts are joined by line breaks."""
    if isinstance(message.content, list):
        return "\n".join(part.text for part in message.content)
    return message.content or ""


async def chat_prompt(
    text: TextModel,
    spec: ModelSpec,
    messages: Sequence[Message],
    limits: Limits,
    memory: TenantMemory,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> list[int]:
    """Token ids of a conversation, laid out by the model's chat template.

    `tools` are those that the template lays out itself.
    """
    chars = sum(map(_chars, messages)) + len(str(tools or ""))
    return await tokenised(
        chars, spec, limits, lambda: memory.encode(text, text.render(messages, tools=tools))
    )


async def text_prompt(
    text: TextModel,
    spec: ModelSpec,
    prompt: str,
    limits: Limits,
    memory: TenantMemory,
    *,
    raw: bool,
) -> list[int]:
    """Token ids of a user's turn, or with `raw` of a text that is continued as it stands."""

    def tokenise() -> list[int]:
        laid_out = text.render_prompt(prompt, raw=raw)
        if laid_out == prompt:
            return text.encode(laid_out, add_special=True)
        return memory.encode(text, laid_out)  # a template writes its own BOS

    return await tokenised(len(prompt), spec, limits, tokenise)


async def tokenised(
    chars: int, spec: ModelSpec, limits: Limits, tokenise: Callable[[], list[int]]
) -> list[int]:
    """What `tokenise` makes of a text of `chars` characters, on a thread if it is long."""
    _check_chars(chars, spec, limits)
    with tracing.span("tokenise", model=spec.id) as noted:
        ids = tokenise() if chars <= INLINE_CHARS else await asyncio.to_thread(tokenise)
        noted["tokens"] = len(ids)
    if not ids:
        raise InvalidInput("Bad input: the prompt is empty.", param="prompt")
    return ids


def _chars(message: Message) -> int:
    """Characters that a template may lay out: of the content, and of calls that were made."""
    try:
        calls = len(str(message.tool_calls or ""))
    except RecursionError:
        raise InvalidInput(
            "Bad input: messages: tool_calls are nested too deeply", param="messages"
        ) from None
    return len(content_text(message)) + calls


def _check_chars(chars: int, spec: ModelSpec, limits: Limits) -> None:
    if chars > spec.context_window * limits.prompt_chars_per_token:
        raise PromptTooLong(
            f"The prompt has {chars} characters, far more than the context window of "
            f"{spec.context_window} tokens of {spec.id} can hold."
        )


def output_limit(
    asked: int | None,
    prompt_tokens: int,
    spec: ModelSpec,
    limits: Limits,
    param: str = "max_tokens",
) -> int:
    """How many tokens may be generated. Raises `PromptTooLong` or `InvalidInput`, with numbers."""
    room = spec.context_window - prompt_tokens
    if room < 1:
        raise PromptTooLong(
            f"The prompt has {prompt_tokens} tokens; prompt and output together must fit the "
            f"context window of {spec.context_window} tokens of {spec.id}."
        )
    if asked is None:
        return min(spec.default_max_tokens or limits.default_max_tokens, room)
    if asked > spec.context_window:
        raise InvalidInput(
            f"Bad input: {param} is too large: {asked}. The context window of {spec.id} is "
            f"{spec.context_window} tokens.",
            param=param,
        )
    if asked > room:
        raise PromptTooLong(
            f"The prompt has {prompt_tokens} tokens and {param} is {asked}; together they exceed "
            f"the context window of {spec.context_window} tokens of {spec.id}. At most {room} "
            f"output tokens fit.",
            param=param,
        )
    return asked


def output_floor(asked: int | None, limit: int) -> int:
    """How many tokens must be generated, of at most `limit`. Raises `InvalidInput`."""
    if (asked or 0) > limit:
        raise InvalidInput(
            f"Bad input: min_tokens ({asked}) exceeds max_tokens ({limit})", param="min_tokens"
        )
    return asked or 0


def sampling(
    request: SamplingRequest,
    text: TextModel,
    *,
    default_temperature: float,
    max_tokens: int,
    min_tokens: int = 0,
    ignore_stop_tokens: bool = False,
    logprobs: int | None = None,
) -> Sampling:
    """The region's sampling parameters. A seed that is absent is drawn here, once per request."""
    seed = request.seed if request.seed is not None else secrets.randbits(63)
    return Sampling(
        temperature=_or(request.temperature, default_temperature),
        top_p=_or(request.top_p, 1.0),
        top_k=max(0, request.top_k or 0),
        min_p=_or(request.min_p, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        seed=seed & SEED_MASK,
        logit_bias=_logit_bias(request.logit_bias, text),
        logprobs=logprobs,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=() if ignore_stop_tokens else tuple(text.stop_token_ids),
    )


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """A request's `stop`, in either form."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def refuse_unsupported(fields: Mapping[str, Any]) -> None:
    """Raise `TaskNotSupported` for the first of `fields` that asks for something.

    null and empty lists, which many clients send, ask for nothing; nor does plain text output.
    """
    for name, value in fields.items():
        if value and value != {"type": "text"}:
            raise TaskNotSupported(f"'{name}' is not supported by this model.", param=name)


def _logit_bias(bias: dict[str, float] | None, text: TextModel) -> tuple[tuple[int, float], ...]:
    entries = []
    for key, value in (bias or {}).items():
        token_id = whole_number(key, 0, text.vocab_size - 1)
        if token_id is None:
            raise InvalidInput(
                f"Bad input: logit_bias: {key[:40]!r} is not a token id below {text.vocab_size}",
                param="logit_bias",
            )
        entries.append((token_id, value))
    return tuple(entries)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
