"""The description of a family: the marks and the encodings that its outputs are made of.

It is data. `reader.Reader` reads a stream by it, `output.tool_grammars` holds a model to it, and
`output.tool_prompts` writes turns by it where the model's chat template does not.

A mark is a string. One that is a control token of the model's vocabulary stands in the description,
once `bound`, as one character of its own (U+FDD0 and on, which are in no text), and so does the
token in the text that a reader is given: what a model merely spells is never such a mark.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Literal, TypeVar

FIRST_MARK: Final = 0xFDD0  # of the 32 noncharacters in a row (Unicode, 23.7)
MAX_MARKS: Final = 32

_ID_LETTERS: Final = string.ascii_letters + string.digits
_BLANK: Final = " \t\r\n"

Encoding = Literal["json", "list", "head", "tags", "quoted"]
Ids = Literal["any", "nine", "counter"]
History = Literal["field", "thinking", "chunks"]
"""`reasoning_content` or `thinking` of a message, or chunks of its content."""

D = TypeVar("D")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """How a thought stands before the answer. Blanks about it belong to its marks."""

    begin: str
    end: str
    closing: str  # what leads from within a thought to the answer, where the model may not go on
    shown_by: tuple[str, ...]  # what a template holds whose model thinks
    history: History = "field"  # how the template takes those of earlier turns
    switch: str | None = None  # the template's variable that turns thoughts on and off
    effort: str | None = None  # the template's variable that says how much is thought
    levels: tuple[str, ...] = ("low", "medium", "high")  # of it


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStyle:
    """How calls are written.

    json    BEGIN {"name": N, KEY: {…}} END
    list    BEGIN [{"name": N, KEY: {…}}, …] END
    head    BEGIN N SEPARATOR {…} END
    tags    BEGIN NAME[0] N NAME[1] (KEY[0] K KEY[1] V VALUE_END)* END
    quoted  BEGIN N {K:V,…} END, where texts stand between QUOTE and nothing is escaped
    """

    encoding: Encoding
    begin: str  # empty: a call can only be the whole output
    end: str
    lead: str = "\n"  # between a text and the first call
    between: str = "\n"
    section: tuple[str, str] = ("", "")  # around all calls of a turn
    arguments_key: str = "arguments"  # of json and list
    separator: str = ""  # of head
    prefix: str = ""  # of a name, which is not part of it
    counts: str = ""  # of head: between a name and the number of the call in the conversation
    call_id: str = ""  # of head: between a name and an id
    name: tuple[str, str] = ("", "")  # of tags
    key: tuple[str, str] = ("", "")  # of tags
    value_end: str = ""  # of tags
    quote: str = ""  # of quoted

    @property
    def trigger(self) -> str:
        """Return what calls begin with, in a text; empty where a call begins the output."""
        return (self.section[0] or self.begin).strip(_BLANK)

    def head(self, tool: str) -> str:
        """Return what the JSON of a call of `tool` starts with, up to its arguments."""
        name = json.dumps(tool, ensure_ascii=False)
        return f'{{"name": {name}, "{self.arguments_key}": '


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStyle:
    """An output of several messages, each with a header (OpenAI's Harmony):

    START [to=R] CHANNEL C [to=R] [CONSTRAIN json] MESSAGE body END
    """

    start: str
    channel: str
    constrain: str
    message: str
    ends: tuple[str, ...]  # of a message, a call, the answer
    thought: str  # the channel of reasoning
    answer: str
    call: str
    recipient: str  # before a tool's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the outputs of a family of models are made of."""

    name: str
    calls: CallStyle
    reasoning: Reasoning | None = None
    messages: MessageStyle | None = None  # the output is these, and not marks in a text
    is_templated: bool = True  # the chat template lays out calls and results
    describes_tools: bool = False  # and tools
    lays_out_calls: bool = True  # and earlier calls
    teaching: str = ""  # what the system message says where it does not; `{tools}` are these
    is_marked_by_tokens: bool = False  # its calls' mark is nothing in a vocabulary without it
    ids: Ids = "any"  # of calls, as the template wants them
    tokens: tuple[str, ...] = ()  # marks that are control tokens where the vocabulary has them
    token_ids: tuple[tuple[str, int], ...] = ()  # of those that are, by their character

    @property
    def marks(self) -> Mapping[int, str]:
        """Return the characters that stand for control tokens, by token id."""
        return {id_: character for character, id_ in self.token_ids}

    def new_id(self) -> str:
        """Return an id for a call."""
        if self.ids == "nine":
            return "".join(secrets.choice(_ID_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

    def bound(self, control_id: Callable[[str], int | None]) -> Family:
        """Return it for a vocabulary, of which `control_id` knows the control tokens."""
        if len(self.tokens) > MAX_MARKS:
            raise ValueError(f"the family {self.name} has more than {MAX_MARKS} control tokens")
        characters: dict[str, str] = {}
        ids: list[tuple[str, int]] = []
        for number, token in enumerate(self.tokens):
            if (id_ := control_id(token)) is not None:
                characters[token] = chr(FIRST_MARK + number)
                ids.append((characters[token], id_))
        return replace(
            self,
            calls=_written(self.calls, characters),
            reasoning=_written(self.reasoning, characters),
            messages=_written(self.messages, characters),
            token_ids=tuple(ids),
        )

    def spelled(self, text: str) -> str:
        """Return a text with control tokens as they are written."""
        for number, token in enumerate(self.tokens):
            text = text.replace(chr(FIRST_MARK + number), token)
        return text


def is_mark(text: str) -> bool:
    """Return whether a text begins with a control token's character."""
    return bool(text) and FIRST_MARK <= ord(text[0]) < FIRST_MARK + MAX_MARKS


def _written(value: D, characters: Mapping[str, str]) -> D:
    """Return a description with control tokens as their characters."""
    written: Any = value
    if isinstance(value, str):
        for token in sorted(characters, key=len, reverse=True):
            written = written.replace(token, characters[token])
    elif isinstance(value, tuple):
        written = tuple(_written(each, characters) for each in value)
    elif is_dataclass(value) and not isinstance(value, type):
        own = {field.name: getattr(value, field.name) for field in fields(value)}
        written = replace(value, **{name: _written(each, characters) for name, each in own.items()})
    result: D = written
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSpec:
    """What a reader has to know of one request."""

    family: Family
    is_open: bool = False  # the prompt has begun a thought
    tools: Mapping[str, Mapping[str, Any]] | None = None  # parameters by name; None: no calls
