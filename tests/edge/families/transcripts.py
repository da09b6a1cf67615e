"""Turns as models write them: laid out by the templates that their makers publish, and read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from skerry_edge.families.deltas import CallDelta, Calls, Delta, ReasoningDelta, TextDelta
from skerry_edge.families.family import ReaderSpec
from skerry_edge.families.reader import Reader
from skerry_edge.families.recognition import family_of
from skerry_edge.families.writer import written_calls
from skerry_edge.text.control_tokens import MARK, Guard
from skerry_edge.text.templates.template import ChatTemplate

TEMPLATES = Path(__file__).parents[2] / "data" / "templates"
FIRST_ID = 1000  # of control tokens
TOOLS: dict[str, dict[str, Any]] = {
    "get": {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "count": {"type": "integer"},
            "deep": {"type": "boolean"},
            "names": {"type": "array", "items": {"type": "string"}},
            "options": {"type": "object"},
            "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
    },
    "get_all": {"type": "object", "properties": {"code": {"type": "string"}}},
    "stop": {"type": "object", "properties": {}},
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A template, and what it can lay out of one turn."""

    family: str
    end: str = r"<\|im_end\|>\n"  # of the turn, an expression
    thinks: bool = False
    calls: int = 2
    says_and_calls: bool = True  # a text before calls
    thinks_and_says: bool = True  # a thought before a text that is no call
    are_tokens: tuple[bool, ...] = (False, True)  # whether marks are control tokens
    by_template: bool = True  # calls are in it


CASES = {
    "hermes-3": Case(family="hermes", says_and_calls=False),
    "qwen2.5": Case(family="hermes"),
    "qwen3": Case(family="hermes", thinks=True),
    "granite-4.0": Case(family="hermes", end=r"<\|end_of_text\|>\n"),
    "llama-3.1": Case(family="llama", end=r"<\|eot_id\|>", calls=1, says_and_calls=False),
    "llama-3.2": Case(family="llama", end=r"<\|eot_id\|>", calls=1, says_and_calls=False),
    "gpt-oss": Case(
        family="harmony",
        end=r"(<\|return\|>|<\|call\|>)",
        thinks=True,
        calls=1,
        says_and_calls=False,
        are_tokens=(True,),
    ),
    "deepseek-v3.1": Case(family="deepseek-v3.1", end="<｜end▁of▁sentence｜>"),
    "deepseek-r1": Case(family="deepseek-r1", end="<｜end▁of▁sentence｜>", says_and_calls=False),
    "mistral-nemo": Case(family="mistral-v7", end="</s>", says_and_calls=False, are_tokens=(True,)),
    "mistral-small-3.2": Case(
        family="mistral-v11", end="</s>", says_and_calls=False, are_tokens=(True,)
    ),
    "ministral-3": Case(family="mistral", end="</s>", thinks=True, are_tokens=(True,)),
    "qwen3-coder": Case(family="qwen-coder"),
    "qwen3.5": Case(family="qwen-coder", thinks=True),
    "glm-4.6": Case(family="glm-4.5", end="", thinks=True),
    "glm-4.7": Case(family="glm", end="", thinks=True),
    "kimi-k2": Case(family="kimi", end=r"<\|im_end\|>"),
    "granite-3.3": Case(family="granite", end=r"<\|end_of_text\|>\n", by_template=False),
    "gemma-4": Case(
        family="gemma",
        end=r"(<turn\|>\n|<\|tool_response>)",
        thinks=True,
        says_and_calls=False,
        thinks_and_says=False,
    ),
}


@dataclass(frozen=True)
class Turn:
    """What a model says."""

    thought: str
    text: str
    calls: list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class ReadTurn:
    """What a reader makes of it."""

    thought: str
    text: str
    calls: list[tuple[str, str]]  # with arguments as they came
    num_whole: int
    is_cut: bool


class Model:
    """The template of a case, with marks that are control tokens or are not."""

    def __init__(self, name: str, *, has_tokens: bool) -> None:
        self.case = CASES[name]
        source = (TEMPLATES / f"{name}.jinja").read_text()
        self.template = ChatTemplate(source, tokens={"bos_token": "<s>", "eos_token": "</s>"})
        self.ids: dict[str, int] = {}
        self.family = family_of(source, self._id if has_tokens else lambda _: None)
        self.guard = Guard(self.ids)
        # What lays R1's out is llama.cpp's own, and prints what Python cannot.
        self.tools = None if name == "deepseek-r1" else described()
        self._tokens = re.compile("|".join(map(re.escape, self.ids)) or "(?!)")
        self._characters = {token: self.family.marks[id_] for token, id_ in self.ids.items()}

    def _id(self, token: str) -> int:
        return self.ids.setdefault(token, FIRST_ID + len(self.ids))

    def output(self, turn: Turn) -> tuple[str, bool]:
        """Return what the model would have said, as a reader is given it, and whether the prompt
        had begun the thought."""
        asked = [{"role": "user", "content": "Go."}]
        answer: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.calls and self.case.by_template:
            answer["tool_calls"] = [
                {
                    "id": self._call_id(name, number),
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for number, (name, arguments) in enumerate(turn.calls)
            ]
        answer = self.guard.mark_all(answer)
        if turn.calls and not self.case.by_template:
            calls = [(name, self.guard.mark_all(given)) for name, given in turn.calls]
            answer["content"] += self.family.spelled(written_calls(self.family, calls))
        self._put_thought(answer, self.guard.mark(turn.thought))
        prompt = self.template.render(asked, tools=self.tools)
        prompt = prompt.removesuffix("<|channel>thought\n<channel|>")  # that off is
        whole = self.template.render(
            [*asked, answer], tools=self.tools, add_generation_prompt=False
        )
        prompt, said = _after(prompt, whole)
        said = re.sub(f"{self.case.end}$", "", said)
        reasoning = self.family.reasoning
        begin = "" if reasoning is None else self.family.spelled(reasoning.begin).rstrip()
        is_open = bool(begin) and prompt.rstrip().endswith(begin)
        return self.marked(said), is_open

    def marked(self, text: str) -> str:
        """Return what a template laid out, with control tokens as their characters."""
        parts = self._tokens.split(text)
        marks = [self._characters[token] for token in self._tokens.findall(text)]
        plain = [part.replace(MARK, "") for part in parts]
        return plain[0] + "".join(mark + part for mark, part in zip(marks, plain[1:], strict=True))

    def _call_id(self, name: str, number: int) -> str:
        return f"functions.{name}:{number}" if self.family.ids == "counter" else f"abcdefgh{number}"

    def _put_thought(self, answer: dict[str, Any], thought: str) -> None:
        if not thought or self.family.reasoning is None:
            return
        match self.family.reasoning.history:
            case "thinking":
                answer["thinking"] = thought
            case "chunks":
                said = [{"type": "text", "text": answer["content"]}] if answer["content"] else []
                answer["content"] = [{"type": "thinking", "thinking": thought}, *said]
            case _:
                answer["reasoning_content"] = thought

    def read(self, pieces: list[str], *, is_open: bool, is_ended: bool = True) -> ReadTurn:
        spec = ReaderSpec(family=self.family, is_open=is_open, tools=TOOLS)
        return read(spec, pieces, is_ended=is_ended)


def _after(prompt: str, whole: str) -> tuple[str, str]:
    """A prompt, and what comes behind it in a conversation; of a thought that the prompt begins
    and old turns have lost, without that."""
    if whole.startswith(prompt):
        return prompt, whole[len(prompt) :]
    for opened in ("<think>\n", "<think>", "<think></think>", "</think>"):
        if prompt.endswith(opened) and whole.startswith(prompt.removesuffix(opened)):
            return prompt.removesuffix(opened), whole[len(prompt) - len(opened) :]
    raise AssertionError(f"{prompt[-80:]!r} does not begin {whole[-400:]!r}")


@cache
def model(name: str, *, has_tokens: bool) -> Model:
    return Model(name, has_tokens=has_tokens)


def described() -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": name, "description": "It does.", "parameters": schema},
        }
        for name, schema in TOOLS.items()
    ]


def read(spec: ReaderSpec, pieces: list[str], *, is_ended: bool = True) -> ReadTurn:
    """Read an output that comes in pieces."""
    reader = Reader(spec)
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += reader.push(piece)
    deltas += reader.finish(is_ended=is_ended)
    calls = Calls()
    calls.add([delta for delta in deltas if isinstance(delta, CallDelta)])
    return ReadTurn(
        "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
        [(call.name, call.arguments) for call in calls.all],
        sum(call.is_whole for call in calls.all),
        reader.is_cut,
    )
