"""What an output must look like, as callers write it, in llguidance's own form."""

from __future__ import annotations

import re
from typing import Literal, Protocol

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from skerry_core.grammar.call_marks import CallMark
from skerry_core.grammar_error import GrammarError

GrammarKind = Literal["json_schema", "regex", "ebnf"]

MAX_ERROR = 500  # characters of llguidance's message
MAX_SHOWN = 200  # characters of a regular expression in one

_PARSE_ERROR = re.compile(r"regex parse error:\n    ([^\n]*)\n[^\0]*?\nerror: ([^\n]*)")
_LOOKS_AROUND = re.compile(r"lookarounds not supported yet; (\w+) in regex /([^\n]*)/")


class Grammar(Protocol):
    """What an output must look like."""

    @property
    def kind(self) -> GrammarKind: ...

    @property
    def source(self) -> str:
        """Compile a JSON schema, a regular expression (Rust's syntax, anchored at both ends), or
        EBNF in Lark's or in GBNF's notation."""
        ...

    @property
    def calls(self) -> CallMark | None:
        """Return what begins calls of tools in a text; None for an output that is no such text."""
        ...


def lower(kind: GrammarKind, source: str) -> str:
    """Return a `Grammar` in llguidance's own form. Raises GrammarError for an ill-formed one."""
    try:
        match kind:
            case "json_schema":
                # One way to write JSON, as `json.dumps` does: a model cannot dither in white space.
                return LLMatcher.grammar_from_json_schema(
                    source,
                    overrides={
                        "whitespace_flexible": False,
                        "item_separator": ", ",
                        "key_separator": ": ",
                    },
                )
            case "regex":
                return LLMatcher.grammar_from_regex(source)
            case "ebnf":
                return LLMatcher.grammar_from_lark(any_to_lark(source))
    except Exception as error:  # the converter from GBNF raises whatever it runs into
        raise GrammarError(brief(str(error))) from None


def brief(message: str) -> str:
    """Return the first line, since what follows in llguidance's messages is its state; of a regular
    expression, which is refused in several, a sentence."""
    if found := _PARSE_ERROR.search(message):
        return f"the regex /{found[1][:MAX_SHOWN]}/ cannot be used: {found[2][:MAX_ERROR]}"
    if found := _LOOKS_AROUND.search(message):
        what = "word boundaries" if found[1].startswith("Word") else "anchors inside of it"
        return f"the regex /{found[2][:MAX_SHOWN]}/ cannot be used: {what} are not supported"
    first = message.strip().partition("\n")[0]
    return first[:MAX_ERROR]
