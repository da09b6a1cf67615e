"""The text side of a model: conversations to token ids, and token ids to text.

    messages ──render──▶ Prompt ──encode──▶ ids ══ region ══▶ ids ──Detokenizer──▶ text

A `Prompt` is text whose control tokens (`<|im_start|>`) count, because a template or an operator's
own format put them there. A plain `str` is somebody's text, and control tokens in it are only text.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from tokenizers import Tokenizer

from skerry.errors import InvalidInput, PromptTooLong, TaskNotSupported
from skerry.wire import Message
from skerry_edge.families.family import History
from skerry_edge.families.recognition import family_of
from skerry_edge.text.control_tokens import MARK, Guard, dropping_marks
from skerry_edge.text.detokenizer import Detokenizer, TokenBytes
from skerry_edge.text.templates.filters import TemplateRefusal
from skerry_edge.text.templates.foreign_template import ForeignTemplate
from skerry_edge.text.templates.sandbox import TemplateLimit
from skerry_edge.text.templates.template import FAILURES, ChatTemplate
from skerry_edge.text.token_cache import Borders
from skerry_regions.models.model_files import ModelFiles

logger = logging.getLogger(__name__)

LIKELY_CHARS = 4  # of a token; texts with more for each token of the context are looked at first
PIECE_CHARS = 16 << 10  # that are tokenised at a time to see whether a text is too long
ENDING_TOKENS = 24  # in which a prompt shows whether it begins a thought
CUT_TOKENS = 64  # by which a piece may have more than its part of the whole, cut anywhere


class Prompt(str):
    """Text in which control tokens count, except where a `Guard` marked them as a user's."""

    __slots__ = ()


class TextModel:
    """Tokenizer, chat template and stop tokens of one model. Safe to use from several threads."""

    def __init__(
        self,
        files: ModelFiles,
        *,
        context_window: int,
        is_foreign: bool = False,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`is_foreign` says that its template comes with unverified files, and is
        rendered where it may be killed; `now` is what templates may read; `clock` bounds how
        long they may run.

        Raises `template.TemplateError` for a chat template that cannot be used.
        """
        self.id = files.id
        self.is_foreign = is_foreign
        self.context_window = context_window  # tokens
        self.vocab_size = files.vocab_size
        self.stop_token_ids: tuple[int, ...] = files.stop_token_ids
        self.build = files.weights_digest + files.tokenizer_digest + files.template_digest
        self._tokenizer = Tokenizer.from_file(str(files.tokenizer))
        self._bos_id = files.bos_id if files.add_bos else None
        control = {
            id_: token.content
            for id_, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special or id_ in files.stop_token_ids
        }
        self._control_ids = frozenset(control)
        self._guard = Guard(control.values())
        self._dropping_marks = dropping_marks(self._tokenizer)
        self.borders = Borders(self._tokenizer)
        self._tokens = TokenBytes(self._tokenizer, files.token_form)
        self._strip_space = files.strips_space
        self.family = family_of(files.chat_template, self.control_id)
        self._template: ChatTemplate | ForeignTemplate | None = None
        if files.chat_template is not None:
            ids = {"bos": files.bos_id, "eos": files.eos_id, "pad": files.pad_id}
            ids["unk"] = files.unk_id
            tokens = {
                f"{name}_token": self.token_bytes(id_).decode()
                for name, id_ in ids.items()
                if id_ is not None
            }
            source = files.chat_template
            if is_foreign:
                self._template = ForeignTemplate(source, tokens=tokens)
            else:
                self._template = ChatTemplate(source, tokens=tokens, now=now, clock=clock)
            where = ", rendered in a child" if is_foreign else ""
            family = f"family {self.family.name}"
            digest = files.template_digest
            logger.info("%s: chat template %s, %s%s", self.id, digest, family, where)

    def close(self) -> None:
        """End what a foreign template runs in. Blocks; nothing is laid out afterwards."""
        if isinstance(self._template, ForeignTemplate):
            self._template.close()

    # --- text to ids

    @property
    def flags(self) -> frozenset[str]:
        """Return the variables of its chat template that requests may set."""
        return frozenset() if self._template is None else frozenset(self._template.flags)

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        flags: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """Lay out a conversation by the model's chat template, whose variables `flags` set. Nothing
        users wrote in it can turn into a control token.

        Raises `InvalidInput` when the template refuses the messages or cannot render them, and
        `TaskNotSupported` when the model has no template.
        """
        if self._template is None:
            raise TaskNotSupported(
                f"{self.id} has no chat template: send `prompt` in place of `messages`.",
                param="messages",
            )
        try:
            history = "field" if self.family.reasoning is None else self.family.reasoning.history
            turns = [self._guard.mark_all(_turn(message, history)) for message in messages]
            marked_tools = self._guard.mark_all(list(tools)) if tools else None
            text = self._template.render(
                turns,
                tools=marked_tools,
                add_generation_prompt=add_generation_prompt,
                flags=self._guard.mark_all(dict(flags)) if flags else None,
            )
        except TemplateRefusal as refusal:
            raise InvalidInput(f"Bad input: {refusal}", param="messages") from None
        except TemplateLimit as limit:
            raise InvalidInput(
                f"Bad input: laying out these messages takes {limit}.", param="messages"
            ) from None
        except FAILURES as e:
            raise InvalidInput(
                f"Bad input: the chat template of {self.id} cannot lay out these messages; check "
                "the roles, their order, and the form of each content.",
                param="messages",
            ) from e
        return Prompt(text)

    def render_prompt(self, prompt: str, *, raw: bool = False) -> Prompt:
        """Return the `prompt` of a request: a user's turn, or with `raw` the text as it stands, in
        which the caller writes the model's control tokens. A model without a template takes all as
        raw.

        Raises as `render` does.
        """
        if raw or self._template is None:
            return Prompt(prompt)
        return self.render([{"role": "user", "content": prompt}])

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Return token ids. Control tokens are looked for in a `Prompt` only.

        `add_special` puts BOS in front where the model wants one and the text has none: for raw
        text; a chat template writes its own. Raises `InvalidInput` for text that is not Unicode.
        """
        ids = self.encode_part(text if isinstance(text, Prompt) else self._guard.mark(text))
        if add_special and self._bos_id is not None and ids[:1] != [self._bos_id]:
            ids.insert(0, self._bos_id)
        return ids

    def encode_part(self, part: str) -> list[int]:
        """Return token ids of a `Prompt`, or of a part of one that was cut at one of `borders`.

        Raises `InvalidInput` for text that is not Unicode, and `PromptTooLong` for one that shows
        to be longer than the context before its end is reached.
        """
        tokenizer = self._dropping_marks if MARK in part else self._tokenizer
        if len(part) > self.context_window * LIKELY_CHARS:
            self._check_pieces(tokenizer, part)
        return _ids(tokenizer, part)

    def check_length(self, num_tokens: int) -> None:
        """Raise `PromptTooLong` for the beginning of a prompt that leaves no room for its rest."""
        if num_tokens > self.context_window:
            raise PromptTooLong(
                f"The prompt has more than {self.context_window} tokens, the context window of "
                f"{self.id}; prompt and output together must fit it."
            )

    def _check_pieces(self, tokenizer: Tokenizer, part: str) -> None:
        """Count a long text's tokens piece by piece, and stop once they cannot fit."""
        num_tokens = 0
        for start in range(0, len(part), PIECE_CHARS):
            piece = part[start : start + PIECE_CHARS]
            num_tokens += max(0, len(_ids(tokenizer, piece)) - CUT_TOKENS)
            self.check_length(num_tokens)

    def control_id(self, text: str) -> int | None:
        """Return the id of a control token; None where the model has no such one."""
        id_: int | None = self._tokenizer.token_to_id(text)
        return id_ if id_ in self._control_ids else None

    # --- ids to text

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes one token stands for; control tokens as they are written."""
        return self._tokens.of(token_id)

    def ending(self, ids: Sequence[int]) -> str:
        """Return how a prompt ends, with the family's control tokens as their characters."""
        marks, last = self.family.marks, ids[-ENDING_TOKENS:]
        pieces = (marks[id_].encode() if id_ in marks else self._tokens.of(id_) for id_ in last)
        return b"".join(pieces).decode("utf-8", "replace")

    def detokenizer(self) -> Detokenizer:
        """Return a detokenizer for one stream of output."""
        return Detokenizer(self._tokens, strip_space=self._strip_space)


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return token ids, computed without the GIL. Raises `InvalidInput` for what is not Unicode."""
    try:
        (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    except TypeError:  # what the library makes of a lone surrogate
        raise InvalidInput(
            "Bad input: the text holds a lone surrogate (U+D800 to U+DFFF)."
        ) from None
    ids: list[int] = encoding.ids
    return ids


def thought_of(message: Message) -> str | None:
    """Return what the assistant thought before its turn, by whichever of its names."""
    thought = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if thought is not None or message.reasoning_details is None:
        return thought
    texts = [each.get("text") for each in message.reasoning_details]
    return "\n".join([each for each in texts if isinstance(each, str)])


def _turn(message: Message | Mapping[str, Any], history: History = "field") -> dict[str, Any]:
    """Return a message as templates expect it: content is one string, absent fields are absent,
    the arguments of tool calls are objects, and what was thought is where `history` says."""
    turn = {key: each for key, each in msgspec.to_builtins(message).items() if each is not None}
    if isinstance(message, Message) and (thought := thought_of(message)) is not None:
        turn = {key: each for key, each in turn.items() if not key.startswith("reasoning")}
        turn["reasoning_content"] = thought
    content = turn.get("content", "")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    turn["content"] = content
    if calls := turn.get("tool_calls"):
        turn["tool_calls"] = [_tool_call(call) for call in calls]
    if history != "field" and (thought := turn.pop("reasoning_content", None)):
        if history == "thinking":
            turn["thinking"] = thought
        else:
            said = [{"type": "text", "text": content}] if content else []
            turn["content"] = [{"type": "thinking", "thinking": thought}, *said]
    return turn


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}
