"""From a request's words to token ids and sampling parameters, every length checked on the way.

Texts are refused by their length in characters before anything expensive looks at them, and long
ones are laid out and tokenised at the desk, where tenants take turns.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from skerry.errors import InvalidInput, PromptTooLong
from skerry.wire import THINKING, Message, SamplingFields, TextFields
from skerry_edge.limits import Limits
from skerry_edge.telemetry import tracing
from skerry_edge.text.desk import Desk
from skerry_edge.text.model import Prompt, TextModel, thought_of
from skerry_edge.text.token_cache import PART_CHARS
from skerry_edge.whole_numbers import whole_number
from skerry_regions.models.catalog import ModelSpec, SamplingDefaults
from skerry_regions.wire.protocol import Sampling

INLINE_CHARS = 16 * 1024  # tokenised on the event loop: about 5 ms; more goes to the desk
NATIVE_TEMPERATURE = 0.6  # upstream's, of models that state none
OPENAI_TEMPERATURE = 1.0
SEED_MASK = (1 << 64) - 1


def is_plain(request: TextFields, messages: Sequence[Message]) -> bool:
    """Return whether neither tools nor a format play a part in a request: rooms that nothing needs
    for are not entered."""
    return (
        request.response_format is None
        and request.tools is None
        and request.functions is None
        and request.tool_choice is None
        and request.function_call is None
        and request.guided_json is None
        and request.guided_regex is None
        and request.guided_choice is None
        and request.guided_grammar is None
        and all(map(_is_plain_turn, messages))
    )


def _is_plain_turn(message: Message) -> bool:
    called = message.tool_calls is not None or message.function_call is not None
    return not called and message.role not in ("tool", "function")


def says_thinking(request: TextFields) -> bool:
    """Return whether a request says anything of how much is thought before the answer."""
    return any(getattr(request, name) is not None for name in THINKING)


def content_text(message: Message) -> str:
    """Return a message's content as one string; parts are joined by line breaks."""
    if isinstance(message.content, list):
        return "\n".join(part.text for part in message.content)
    return message.content or ""


async def chat_prompt(
    text: TextModel,
    spec: ModelSpec,
    messages: Sequence[Message],
    limits: Limits,
    desk: Desk,
    tenant: str,
    tools: Sequence[Mapping[str, Any]] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return token ids of a conversation, laid out by the model's chat template.

    `tools` are those that the template lays out itself, `flags` variables of its own.
    """
    chars = sum(map(_chars, messages)) + plain_chars(tools)
    return await tokenised(
        desk, tenant, text, chars, spec, limits,
        lambda: encoded(text, text.render(messages, tools=tools, flags=flags), desk, tenant),
    )  # fmt: skip


def encoded(text: TextModel, prompt: Prompt, desk: Desk, tenant: str) -> list[int]:
    """Return token ids of a prompt; beginnings of long ones are remembered at the desk."""
    if len(prompt) < PART_CHARS:
        return text.encode(prompt)
    return desk.of(tenant).encode(text, prompt)


async def text_prompt(
    text: TextModel,
    spec: ModelSpec,
    prompt: str,
    limits: Limits,
    desk: Desk,
    tenant: str,
    *,
    raw: bool,
) -> list[int]:
    """Return token ids of a user's turn, or with `raw` of a text that is continued as it stands."""

    def tokenise() -> list[int]:
        laid_out = text.render_prompt(prompt, raw=raw)
        if laid_out == prompt:
            return text.encode(laid_out, add_special=True)
        return encoded(text, laid_out, desk, tenant)  # a template writes its own BOS

    return await tokenised(desk, tenant, text, len(prompt), spec, limits, tokenise)


async def tokenised(
    desk: Desk,
    tenant: str,
    text: TextModel,
    chars: int,
    spec: ModelSpec,
    limits: Limits,
    tokenise: Callable[[], list[int]],
) -> list[int]:
    """Return what `tokenise` makes of `chars` characters for a model, at the desk if they are many.

    Raises `PromptTooLong`, `InvalidInput`, and what `TenantDesk.run` raises.
    """
    _check_chars(chars, spec, limits)
    with tracing.span("tokenise", model=spec.id) as noted:
        is_quick = chars <= INLINE_CHARS and not text.is_foreign
        ids = tokenise() if is_quick else await desk.of(tenant).run(tokenise)
        noted["tokens"] = len(ids)
    if not ids:
        raise InvalidInput("Bad input: the prompt is empty.", param="prompt")
    return ids


def _chars(message: Message) -> int:
    """Return how many characters a template may lay out: of the content, a thought and calls."""
    thought = thought_of(message) or ""
    return len(content_text(message)) + len(thought) + plain_chars(message.tool_calls)


def plain_chars(value: object) -> int:
    """Return about as many characters as plain data has when it is written."""
    chars, waiting = 0, [value]
    while waiting:
        match waiting.pop():
            case None:
                pass
            case str() as text:
                chars += len(text) + 2
            case dict() as found:
                chars += sum(map(len, found)) + 4 * len(found)
                waiting += found.values()
            case list() | tuple() as found:
                chars += 2 * len(found) + 2
                waiting += found
            case _:
                chars += 4
    return chars


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
    """Return how many tokens may be generated. Raises `PromptTooLong` or `InvalidInput`."""
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
    """Return how many tokens must be generated, of at most `limit`. Raises `InvalidInput`."""
    if (asked or 0) > limit:
        raise InvalidInput(
            f"Bad input: min_tokens ({asked}) exceeds max_tokens ({limit})", param="min_tokens"
        )
    return asked or 0


def sampling(
    request: SamplingFields,
    text: TextModel,
    defaults: SamplingDefaults,
    *,
    temperature: float,
    max_tokens: int,
    min_tokens: int = 0,
    logprobs: int | None = None,
) -> Sampling:
    """Return the region's sampling parameters: the request's, else the model's `defaults`, else
    neutral ones with the dialect's `temperature`. A seed that is absent is drawn here."""
    seed = request.seed if request.seed is not None else secrets.randbits(63)
    return Sampling(
        temperature=_first(request.temperature, defaults.temperature, temperature),
        top_p=_first(request.top_p, defaults.top_p, 1.0),
        top_k=max(0, int(_first(request.top_k, defaults.top_k, 0))),
        min_p=_first(request.min_p, defaults.min_p, 0.0),
        typical_p=_first(request.typical_p, defaults.typical_p, 1.0),
        repetition_penalty=_first(request.repetition_penalty, defaults.repetition_penalty, 1.0),
        frequency_penalty=request.frequency_penalty or 0.0,
        presence_penalty=request.presence_penalty or 0.0,
        seed=seed & SEED_MASK,
        logit_bias=_logit_bias(request.logit_bias, text),
        logprobs=logprobs,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=() if request.ignore_eos else tuple(text.stop_token_ids),
    )


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return a request's `stop`, in either form."""
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


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


def _first(value: float | None, default: float | None, neutral: float) -> float:
    if value is not None:
        return value
    return neutral if default is None else default
