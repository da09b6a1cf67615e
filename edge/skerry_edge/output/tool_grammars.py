"""Grammars of whole outputs: reasoning, text, calls of tools, in the form of a family of models.

Each begins with the line of its rule `start`, what may follow a thought. The prompt may have begun
one, which only its end shows: `framed` then puts the thought before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import msgspec

from skerry.errors import InvalidInput
from skerry_edge.families.family import Family, MessageStyle, is_mark
from skerry_edge.families.recognition import Thought
from skerry_edge.output.call_grammars import CallRules, json_rule, quoted
from skerry_edge.output.format import OutputFormat
from skerry_edge.output.one_of import Schema
from skerry_edge.output.tools import Tool, Toolbox, invalid_tools
from skerry_edge.output.unenforced import Unenforced
from skerry_regions.wire.output_marks import CallMarkSpec
from skerry_regions.wire.protocol import MAX_GRAMMAR, GrammarSpec

ANYTHING = "ANY: /(?s:.*)/"


def tool_grammar(
    family: Family,
    box: Toolbox,
    wanted: OutputFormat | None = None,
    unenforced: Unenforced | None = None,
) -> GrammarSpec | None:
    """Return what the output may be: calls, or text, or what `wanted` says in its place.

    Of what the encoding of calls cannot hold `unenforced` gets the paths. Raises `InvalidInput` for
    that where there is none or the tool is strict, when all of it is too long, or for a format that
    is not JSON.
    """
    if box.choice == "none":
        return wanted.grammar if wanted is not None else _only_text(family)
    rules = CallRules(family, _unheld(unenforced))
    names = [f"call_{number}" for number in range(len(box.tools))]
    for name, tool in zip(names, box.tools, strict=True):
        rules.call(tool, name)
    rules.all.append("call: " + " | ".join(names))
    if family.messages is not None:
        start = _message_start(family.messages, rules, box, wanted)
    else:
        start = _start(family, box, wanted, rules)
    source = "\n".join([f"start: {start}", *rules.all, ANYTHING])
    if len(source.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR:
        raise invalid_tools("tools", f"all tools together are longer than {MAX_GRAMMAR} bytes")
    strict = any(tool.is_strict for tool in box.tools)
    strict = strict or (wanted is not None and wanted.grammar.strict)
    calls = call_mark(family) if box.choice == "auto" and wanted is None else None
    return GrammarSpec(kind="ebnf", source=source, strict=strict, calls=calls)


def framed(
    family: Family, thought: Thought, grammar: GrammarSpec | None, *, has_calls: bool
) -> GrammarSpec | None:
    """Return a grammar with the thought before it that the prompt has begun, or the model may.

    Raises `InvalidInput` for a grammar of the caller's that cannot follow one.
    """
    reasoning = family.reasoning
    if grammar is None or thought == "closed" or reasoning is None or family.messages is not None:
        return grammar
    rules = CallRules(family, _unheld(None))
    called = has_calls and family.calls.trigger and "\ncalls_rest: " in grammar.source
    begin = "" if thought == "open" else rules.literal(reasoning.begin)
    ends = {"thought_end": (reasoning.end, "SPACE? answer")}
    if called:  # a call ends a thought that has no end of its own
        ends["thought_call"] = (family.calls.trigger, "calls_rest")
    ways = [f"{begin} {rules.until(name, mark)} {then}" for name, (mark, then) in ends.items()]
    if thought == "may":
        ways.append("answer")
    source = "\n".join(
        [
            f"start: {' | '.join(ways)}",
            *_answer(grammar),
            *rules.all,
            "SPACE: /[ \\n]{1,4}/",
            *([] if ANYTHING in grammar.source else [ANYTHING]),
        ]
    )
    return msgspec.structs.replace(grammar, kind="ebnf", source=source)


def _answer(grammar: GrammarSpec) -> list[str]:
    match grammar.kind:
        case "json_schema":
            return [f"answer: {json_rule(json.loads(grammar.source))}"]
        case "regex":
            escaped = re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", grammar.source)
            return [f"answer: /{escaped}/"]
        case _:
            if grammar.source.startswith("start: ") and grammar.source.endswith(ANYTHING):
                return ["answer: " + grammar.source.removeprefix("start: ")]
            if "::=" in grammar.source:
                raise InvalidInput(
                    "Bad input: guided_grammar: behind a thought only Lark's notation can follow, "
                    "not GBNF's",
                    param="guided_grammar",
                )
            return ["answer: %lark {", grammar.source, "}"]


def call_mark(family: Family) -> CallMarkSpec | None:
    """Return what begins a call for an engine; None where no single mark does."""
    trigger = family.calls.trigger
    if family.messages is not None:
        return None
    if not trigger:
        return CallMarkSpec(text="{", is_first=True)
    if is_mark(trigger):
        return CallMarkSpec(token=dict(family.token_ids)[trigger[0]])
    found = re.match(r"\W*[^\W_]+", trigger)  # its first word, after which it may still be text
    opening = trigger if found is None else found[0]
    return CallMarkSpec(text=opening, rest=trigger.removeprefix(opening))


def _start(family: Family, box: Toolbox, wanted: OutputFormat | None, rules: CallRules) -> str:
    style, trigger = family.calls, family.calls.trigger
    several = box.is_parallel and bool(trigger)
    _add_calls(family, rules, several=several)
    if box.choice == "required":
        return "calls"
    if wanted is not None:
        return f"calls | {_json_of(wanted)}"
    if is_mark(trigger):  # no text can hold the mark, which is no text
        return "ANY calls?"
    if not style.trigger:  # text is what does not look like a call
        rules.all.append("text: /([^{](.|\\n)*)?/")
        return "calls | text"
    rules.all += [
        "marked: trigger rest",
        f"trigger[lazy]: ANY {quoted(trigger)}",  # ends it as soon as it is there
        *_text(trigger),
    ]
    return "marked* text" if several else "marked | text"


def _add_calls(family: Family, rules: CallRules, *, several: bool) -> None:
    """Add the rules of calls that stand together: `rest` is what follows the trigger of one, or of
    a section of them."""
    style = family.calls
    literal, between = rules.literal, rules.literal(style.between)
    trigger, end = literal(style.trigger), literal(style.end)
    if style.encoding == "list":
        rest = f'("[" | " [") call{f" ({between} call)*" if several else ""} "]" {end}'
    elif style.section[0]:
        one = f"{literal(style.begin)} call {end}"
        more = f" ({between} {one})*" if several else ""
        after = literal(style.section[0].removeprefix(style.trigger))
        rest = f"{after} {one}{more} {literal(style.section[1])}"
    else:
        rest = f"{literal(style.begin.removeprefix(style.trigger))} call {end}"
    repeats = several and style.encoding != "list" and not style.section[0]
    again = f" ({between} {trigger} rest)*" if repeats else ""
    rules.all += [f"rest: {rest}", f"calls_rest: rest{again}", f"calls: {trigger} calls_rest"]


def _message_start(
    style: MessageStyle, rules: CallRules, box: Toolbox | None, wanted: OutputFormat | None
) -> str:
    """Return the rule of messages: any thoughts and words before the call or the answer."""
    literal = rules.literal
    channel, message = literal(style.channel), literal(style.message)
    before = [
        f"{channel} {quoted(name)} {message} {rules.until(f'said_{name}', style.ends[0])}"
        for name in (style.thought, style.call)
    ]
    rules.all.append(f'before: ({" | ".join(before)}) {literal(style.start)} "assistant"')
    if box is None or box.choice != "required":
        body = "ANY" if wanted is None else _json_of(wanted)
        typed = "" if wanted is None else f'(" " {literal(style.constrain)} "json")?'
        rules.all.append(
            f"answer_message: {channel} {quoted(style.answer)} {typed} {message} answer_body"
        )
        rules.all.append(f"answer_body: {body}")
    if box is None or box.choice == "none":
        return "before* answer_message"
    return "before* call" if box.choice == "required" else "before* (call | answer_message)"


def _json_of(wanted: OutputFormat) -> str:
    if not wanted.is_json:
        raise invalid_tools("tools", "beside tools the output can be JSON or text, nothing else")
    schema: Schema = json.loads(wanted.grammar.source)
    return json_rule(schema)


def _only_text(family: Family) -> GrammarSpec | None:
    trigger = family.calls.trigger
    if family.messages is not None:
        rules = CallRules(family, _unheld(None))
        start = _message_start(family.messages, rules, None, None)
        source = "\n".join([f"start: {start}", *rules.all, ANYTHING])
    elif not trigger:
        return None
    elif is_mark(trigger):
        source = f"start: ANY\n{ANYTHING}"
    else:
        source = "\n".join(["start: text", *_text(trigger), ANYTHING])
    return GrammarSpec(kind="ebnf", source=source)


def _text(mark: str) -> list[str]:
    """Return the rules of text, which holds no mark and does not end in a part of one."""
    parts = "|".join(re.escape(mark[:size]) for size in range(1, len(mark)))
    return [
        "text: TEXT",
        f"TEXT: ANY & ~/(?s:.*{re.escape(mark)}.*)/ & ~/(?s:.*)({parts})/",
    ]


def _unheld(unenforced: Unenforced | None) -> Callable[[Tool, str], None]:
    def note(tool: Tool, path: str) -> None:
        where = f"{tool.path}{path}"
        if unenforced is None or tool.is_strict:
            raise invalid_tools(where, "the model's way to write calls cannot hold this keyword")
        unenforced.add(where)

    return note
