"""The OpenAI dialect's text completions: a text is continued, or scored (`echo` with `logprobs`).

Choices of several prompts are numbered through: choice `index` is `prompt number * n + choice`.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from skerry.errors import InvalidInput, LoraNotSupported
from skerry.wire import (
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    FinishReason,
    TokenLogprob,
    Usage,
)
from skerry_edge.api.bodies import decode, read_body
from skerry_edge.api.handler import attended, authorise, begin, call_of, edge_of, event_stream
from skerry_edge.envelopes import JSONBytes, encode, openai_error_event
from skerry_edge.generation.choices import Choices, Job, Piece
from skerry_edge.generation.edge import Edge
from skerry_edge.generation.sse import DONE
from skerry_edge.text.model import TextModel
from skerry_edge.text.prompts import (
    output_floor,
    output_limit,
    refuse_unsupported,
    sampling,
    stop_strings,
    tokenised,
)
from skerry_edge.text.transcript import token_logprob
from skerry_regions.models.catalog import ModelSpec

DEFAULT_TEMPERATURE = 1.0  # OpenAI's
DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_CHOICES = 128  # of all prompts
MAX_PROMPT_LOGPROBS = 1 << 19  # entries of all prompts: what one answer may take of memory

_decoder = msgspec.json.Decoder(CompletionRequest)


async def completions(request: Request) -> Response:
    """`POST …/v1/completions`."""
    edge = edge_of(request)
    principal = authorise(request, "run")
    asked = decode(_decoder, await read_body(request, edge.limits.body_bytes))
    call = call_of(request, principal)
    jobs, prompts = await _jobs(edge, asked)
    choices = await begin(request, call, *jobs)
    head = Completion(
        id=f"cmpl-{call.request_id}",
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
        answer = await attended(request, call, _collect(choices, writers, head))
        return JSONBytes(encode(answer))
    options = asked.stream_options
    return event_stream(
        request,
        call,
        choices,
        _events(choices, writers, head, include_usage=bool(options and options.include_usage)),
        lambda exc: openai_error_event(exc, call.request_id),
    )


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt in token ids; `text` is what was given, None when it was given in ids."""

    ids: list[int]
    text: str | None


async def _jobs(edge: Edge, asked: CompletionRequest) -> tuple[list[Job], list[PromptText]]:
    """Check everything a caller can get wrong, and tokenise."""
    spec, text = edge.served(asked.model)
    if asked.lora is not None:
        raise LoraNotSupported(f"The model {spec.id} does not support LoRA.", param="lora")
    refuse_unsupported({"suffix": asked.suffix})
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
    prompts = [await _prompt(edge, spec, text, prompt) for prompt in given]
    scored = asked.logprobs if asked.echo else None
    if scored is not None:
        entries = sum(len(prompt.ids) for prompt in prompts) * (1 + scored) * num_choices
        if entries > MAX_PROMPT_LOGPROBS:
            raise InvalidInput(
                f"Bad input: prompt: {entries} log-probabilities of prompt tokens, at most "
                f"{MAX_PROMPT_LOGPROBS} in a request",
                param="prompt",
            )
    return [_job(edge, spec, text, asked, prompt.ids, scored) for prompt in prompts], prompts


def _job(
    edge: Edge,
    spec: ModelSpec,
    text: TextModel,
    asked: CompletionRequest,
    prompt_ids: list[int],
    prompt_logprobs: int | None,
) -> Job:
    wanted = asked.max_tokens
    if wanted is None:
        wanted = min(DEFAULT_MAX_TOKENS, max(1, spec.context_window - len(prompt_ids)))
    limit = output_limit(max(1, wanted), len(prompt_ids), spec, edge.limits)
    return Job(
        model=spec,
        text=text,
        prompt_ids=prompt_ids,
        sampling=sampling(
            asked,
            text,
            default_temperature=DEFAULT_TEMPERATURE,
            max_tokens=limit,
            min_tokens=output_floor(asked.min_tokens, limit),
            ignore_stop_tokens=bool(asked.ignore_eos),
            logprobs=asked.logprobs,
        ),
        stops=stop_strings(asked.stop),
        num_choices=asked.n or 1,
        tells_stop_token=True,
        prompt_logprobs=prompt_logprobs,
        seeded=asked.seed is not None,
    )


def prompts_given(
    prompt: str | Sequence[str | int | list[int]], param: str = "prompt"
) -> list[str | list[int]]:
    """The prompts of a request: `"…"`, `["…", …]`, `[1, 2]` (one prompt) or `[[1, 2], …]`."""
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
    edge: Edge, spec: ModelSpec, text: TextModel, given: str | list[int]
) -> PromptText:
    if isinstance(given, str):
        raw = text.render_prompt(given, raw=True)
        ids = await tokenised(
            len(given), spec, edge.limits, lambda: text.encode(raw, add_special=True)
        )
        return PromptText(ids, given)
    if not given:
        raise InvalidInput("Bad input: the prompt is empty.", param="prompt")
    wrong = next((each for each in given if not 0 <= each < text.vocab_size), None)
    if wrong is not None:
        raise InvalidInput(
            f"Bad input: prompt: {wrong} is not a token id below {text.vocab_size}", param="prompt"
        )
    return PromptText(given, None)


class ChoiceWriter:
    """Turns the pieces of one choice into text and logprobs with their places in the text.

    With `echo` the prompt comes first, its control tokens as they are written.
    """

    def __init__(
        self,
        text: TextModel,
        prompt: PromptText,
        *,
        echo: bool,
        with_logprobs: bool,
        with_output: bool,
    ) -> None:
        self._text = text
        self._prompt = prompt
        self._with_logprobs = with_logprobs
        self.with_output = with_output
        self._to_echo = echo
        self._offsets: list[int] = []  # of the prompt's tokens
        self._told = 0  # prompt tokens whose logprobs were written
        self._output_start = 0  # characters before the output

    def write(self, piece: Piece) -> tuple[str, CompletionLogprobs | None]:
        """What a piece adds."""
        logprobs = CompletionLogprobs([], [], [], []) if self._with_logprobs else None
        text = self._echo(logprobs) if self._to_echo else ""
        if logprobs is not None:
            for told in piece.prompt_logprobs:
                token_id, offset = self._prompt.ids[self._told], self._offsets[self._told]
                _add(logprobs, token_logprob(self._text, token_id, told), offset)
                self._told += 1
            if self.with_output:
                for entry, offset in zip(piece.logprobs, piece.offsets, strict=True):
                    _add(logprobs, entry, self._output_start + offset)
        return text + (piece.text if self.with_output else ""), logprobs

    def _echo(self, logprobs: CompletionLogprobs | None) -> str:
        """The prompt's text; its first token has no logprob."""
        self._to_echo = False
        spelled, offsets = self._spell()
        text = spelled if self._prompt.text is None else self._prompt.text
        # What the tokeniser put in front (BOS, SentencePiece's space) is not in the text given.
        lead = len(spelled) - len(text) if spelled.endswith(text) else 0
        self._offsets = [max(0, offset - lead) for offset in offsets]
        self._output_start = len(text)
        if logprobs is not None:
            logprobs.tokens.append(token_name(self._text.token_bytes(self._prompt.ids[0])))
            logprobs.token_logprobs.append(None)
            logprobs.top_logprobs.append(None)
            logprobs.text_offset.append(self._offsets[0])
            self._told = 1
        return text

    def _spell(self) -> tuple[str, list[int]]:
        """The prompt's tokens as text, and where in it each begins."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces, offsets, length = [], [], 0
        for token_id in self._prompt.ids:
            offsets.append(length)
            pieces.append(decoder.decode(self._text.token_bytes(token_id)))
            length += len(pieces[-1])
        pieces.append(decoder.decode(b"", final=True))
        return "".join(pieces), offsets


def token_name(data: bytes) -> str:
    """A token as a key that no other token has: part of a character is written in hex."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _add(logprobs: CompletionLogprobs, entry: TokenLogprob, offset: int) -> None:
    logprobs.tokens.append(token_name(bytes(entry.bytes)))
    logprobs.token_logprobs.append(entry.logprob)
    logprobs.top_logprobs.append(_likeliest(entry))
    logprobs.text_offset.append(offset)


def _likeliest(entry: TokenLogprob) -> dict[str, float]:
    """The likeliest tokens, and the token itself when it is not one of them."""
    likeliest = {token_name(bytes(top.bytes)): top.logprob for top in entry.top_logprobs}
    return likeliest | {token_name(bytes(entry.bytes)): entry.logprob}


async def _collect(
    choices: Choices, writers: Sequence[ChoiceWriter], head: Completion
) -> Completion:
    texts: list[list[str]] = [[] for _ in writers]
    logprobs: list[CompletionLogprobs | None] = [None for _ in writers]
    reasons: list[FinishReason | None] = [None for _ in writers]
    try:
        async for index, piece in choices.pieces():
            text, more = writers[index].write(piece)
            texts[index].append(text)
            logprobs[index] = _joined(logprobs[index], more)
            reasons[index] = piece.finish_reason or reasons[index]
    finally:
        choices.close()
    return msgspec.structs.replace(
        head,
        choices=[
            CompletionChoice(index, "".join(texts[index]), reasons[index], logprobs[index])
            for index in range(len(writers))
        ],
        usage=_usage(choices, writers),
    )


def _joined(
    first: CompletionLogprobs | None, second: CompletionLogprobs | None
) -> CompletionLogprobs | None:
    if first is None or second is None:
        return first or second
    for name in CompletionLogprobs.__struct_fields__:
        getattr(first, name).extend(getattr(second, name))
    return first


def _usage(choices: Choices, writers: Sequence[ChoiceWriter]) -> Usage:
    usage = choices.usage()
    if not writers[0].with_output:  # one token ran for the prompt's sake
        return msgspec.structs.replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)
    return usage


async def _events(
    choices: Choices, writers: Sequence[ChoiceWriter], head: Completion, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """One event per piece. With usage asked for, the last chunk has it and no choices."""
    chunk = msgspec.structs.replace(head, usage=None) if include_usage else head
    async for index, piece in choices.pieces():
        text, logprobs = writers[index].write(piece)
        choice = CompletionChoice(index, text, piece.finish_reason, logprobs)
        yield _event(msgspec.structs.replace(chunk, choices=[choice]))
    if include_usage:
        yield _event(msgspec.structs.replace(head, usage=_usage(choices, writers)))
    yield DONE


def _event(chunk: Completion) -> bytes:
    return b"data: " + encode(chunk) + b"\n\n"
