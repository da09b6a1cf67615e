"""Text completions as answers: choices of one, their log probabilities, whole or as events."""

from __future__ import annotations

import codecs
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import msgspec

from skerry.wire import FinishReason, TokenLogprob, TokenUsage
from skerry.wire.openai import Completion, CompletionChoice, CompletionLogprobs
from skerry_edge.envelopes import encode
from skerry_edge.generation.generation import Choices, Piece
from skerry_edge.generation.sse import DONE
from skerry_edge.text.model import TextModel
from skerry_edge.text.transcript import token_logprob


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt in token ids; `text` is what was given, None when it was given in ids."""

    ids: list[int]
    text: str | None


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
        """Return what a piece adds."""
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
        """Return the prompt's text; its first token has no logprob."""
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
        """Return the prompt's tokens as text, and where in it each begins."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces, offsets, length = [], [], 0
        for token_id in self._prompt.ids:
            offsets.append(length)
            pieces.append(decoder.decode(self._text.token_bytes(token_id)))
            length += len(pieces[-1])
        pieces.append(decoder.decode(b"", final=True))
        return "".join(pieces), offsets


def token_name(data: bytes) -> str:
    """Return a token as a key that no other token has: part of a character is written in hex."""
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
    """Return the likeliest tokens, and the token itself when it is not one of them."""
    likeliest = {token_name(bytes(top.bytes)): top.logprob for top in entry.top_logprobs}
    return likeliest | {token_name(bytes(entry.bytes)): entry.logprob}


async def collect(
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


def _usage(choices: Choices, writers: Sequence[ChoiceWriter]) -> TokenUsage:
    usage = choices.usage()
    if not writers[0].with_output:  # one token ran for the prompt's sake
        return msgspec.structs.replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)
    return usage


async def events(
    choices: Choices, writers: Sequence[ChoiceWriter], head: Completion, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """Yield one event per piece. With usage requested, the last chunk has it and no choices."""
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
