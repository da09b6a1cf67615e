"""Grammars of single calls, in the encoding of a family: one rule a tool, and what it refers to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from skerry_edge.families.family import CallStyle, Family, MessageStyle, is_mark
from skerry_edge.families.value_types import constants, read_as_text, referred
from skerry_edge.output.one_of import Schema
from skerry_edge.output.tools import JSON_STYLE, Tool

_MARKS: Final = re.compile("([\ufdd0-\ufdef])")
_LENGTHS: Final = ("minLength", "maxLength")
_UNHELD: Final = ("pattern", "format")  # of a text that is written as it stands


class CallRules:
    """Writes the rules of a family's calls; `any` names a terminal of any text."""

    def __init__(self, family: Family, unheld: Callable[[Tool, str], None]) -> None:
        """`unheld` is called with what a tool says of its arguments and the rules do not."""
        self._ids = dict(family.token_ids)
        self._style, self._messages = family.calls, family.messages
        self._unheld = unheld
        self.all: list[str] = []

    def literal(self, text: str) -> str:
        """Return a text in a rule, with control tokens by their ids; a blank where it is empty."""
        parts = [part for part in _MARKS.split(text) if part]
        return " ".join(
            f"<[{self._ids[part]}]>" if is_mark(part) else quoted(part) for part in parts
        )

    def until(self, name: str, mark: str, schema: Schema | None = None) -> str:
        """Return what is any text, or one of a schema's length, up to a mark, and the mark."""
        text = "ANY"
        if schema is not None and any(key in schema for key in _LENGTHS):
            text = name.upper()
            self.all.append(f"{text}: {_bounded(schema, mark)}")
        if is_mark(mark):
            return f"{text} {self.literal(mark)}"
        self.all.append(f"{name}[lazy]: {text} {quoted(mark)}")  # ends as soon as it is there
        return name

    def call(self, tool: Tool, name: str) -> None:
        """Add the rule of a call, from behind `begin` to before `end`."""
        if self._messages is not None:
            self._message(self._messages, tool, name)
            return
        style, said = self._style, self._style.prefix + tool.name
        if style.encoding in ("tags", "quoted"):
            for path in _unheld_paths(tool.parameters, "", is_deep=style.encoding == "quoted"):
                self._unheld(tool, path)
        match style.encoding:
            case "json" | "list":
                self._add(name, quoted(style.head(tool.name)), json_rule(tool.parameters), '"}"')
            case "head":
                parts = [self.literal(said)]
                if style.counts:
                    parts += [self.literal(style.counts), "/[0-9]{1,4}/"]
                if style.call_id:
                    parts += [self.literal(style.call_id), "/[a-zA-Z0-9]{9}/"]
                self._add(name, *parts, self.literal(style.separator), json_rule(tool.parameters))
            case "tags":
                head = self.literal(style.name[0] + said + style.name[1])
                self._add(name, head, *self._tags(style, tool.parameters, name))
            case _:
                self._add(name, self.literal(said), self._quoted(tool.parameters, name))

    def _message(self, style: MessageStyle, tool: Tool, name: str) -> None:
        """Add the rule of a call that is a message of its own, with either order of its header."""
        to, channel = f" to={style.recipient}{tool.name}", f"{style.channel}{style.call}"
        heads = " | ".join(map(self.literal, (to + channel, channel + to)))
        typed = f'" " {self.literal(style.constrain)}? "json" {self.literal(style.message)}'
        self._add(name, f"({heads})", typed, json_rule(tool.parameters))

    def _add(self, name: str, *parts: str) -> None:
        self.all.append(f"{name}: {' '.join(part for part in parts if part)}")

    # --- arguments between tags

    def _tags(self, style: CallStyle, schema: Schema, name: str) -> Iterator[str]:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required = schema.get("required") or ()
        for number, (key, value) in enumerate(properties.items()):
            rule = f"{name}_{number}"
            is_text = read_as_text(schema, key)
            opening = self.literal(style.key[0] + key + style.key[1])
            if is_text:
                self._text(rule, opening, resolved(value, schema), style.value_end)
            else:
                self._add(
                    rule, opening, json_rule(_within(value, schema)), self.literal(style.value_end)
                )
            yield rule if key in required else f"{rule}?"
        if schema.get("additionalProperties", not properties) is not False:
            self._others(f"{name}_others", style)
            yield f"{name}_others*"

    def _others(self, rule: str, style: CallStyle) -> None:
        """Add the rule of an argument that is not declared, and may be anything."""
        value = self.until(f"{rule}_value", style.value_end.rstrip())
        rest = self.literal(style.value_end[len(style.value_end.rstrip()) :])
        opening = self.literal(style.key[0])
        self._add(rule, opening, "/[A-Za-z0-9_.:-]+/", self.literal(style.key[1]), value, rest)

    def _text(self, rule: str, opening: str, schema: Schema, end: str) -> None:
        """Add the rule of a text as it stands, which ends where `end` begins."""
        mark = end.rstrip()
        rest = self.literal(end[len(mark) :])
        if values := listed(schema):
            choice = " | ".join(quoted(value) for value in values)
            self._add(rule, opening, f"({choice})", self.literal(end))
        else:
            self._add(rule, opening, self.until(f"{rule}_text", mark, schema), rest)

    # --- arguments in a notation of their own

    def _quoted(self, schema: Schema, name: str) -> str:
        return _QuotedValues(self, self._style.quote, schema, name).of(schema)


class _QuotedValues:
    """Values with bare keys, in order, and texts between quotes that need no escapes."""

    def __init__(self, rules: CallRules, quote: str, root: Schema, name: str) -> None:
        self._rules, self._root, self._name = rules, root, name
        self._quote = rules.literal(quote)
        self._mark = quote
        self._known: dict[int, str] = {}
        self._number = 0

    def of(self, schema: Any) -> str:
        """Return the rule of a schema's values."""
        schema = resolved(schema, self._root)
        if (known := self._known.get(id(schema))) is not None:
            return known
        self._number += 1
        rule = self._known[id(schema)] = f"{self._name}_{self._number}"
        self._rules.all.append(f"{rule}: {self._value(schema, rule)}")
        return rule

    def _value(self, schema: Schema, rule: str) -> str:
        for key in ("anyOf", "oneOf"):
            if key in schema:
                return " | ".join(map(self.of, schema[key]))
        if values := constants(schema):
            return " | ".join(map(self._constant, values))
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return " | ".join(self.of({**schema, "type": kind}) for kind in kinds)
        match kinds:
            case "object":
                return self._object(schema)
            case "array":
                item = self.of(schema.get("items", {}))
                least, most = schema.get("minItems", 0), schema.get("maxItems")
                return f'"[" {_repeated(item, least, most)} "]"'
            case "string":
                return f"{self._quote} {self._rules.until(f'{rule}_text', self._mark, schema)}"
            case None:
                kinds = ("string", "number", "boolean", "null")
                return " | ".join(self.of({"type": kind}) for kind in kinds)
            case _:
                return json_rule(_within(schema, self._root))

    def _constant(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._quote} {quoted(value)} {self._quote}" if value else self._quote * 2
        return quoted(json.dumps(value))

    def _object(self, schema: Schema) -> str:
        properties: Mapping[str, Any] = schema.get("properties") or {}
        required: set[str] = set(schema.get("required") or ())
        names = sorted(properties)
        pairs = {key: f"{quoted(key + ':')} {self.of(properties[key])}" for key in names}
        # By which of them comes first: the others follow it, each with its comma.
        ways = []
        for number, key in enumerate(names):
            later = [
                f'"," {pairs[each]}' if each in required else f'("," {pairs[each]})?'
                for each in names[number + 1 :]
            ]
            ways.append(" ".join([pairs[key], *later]))
            if key in required:
                break
        if not required:
            ways.append('""')
        return f'"{{" ({" | ".join(ways)}) "}}"'


def _repeated(item: str, least: int, most: int | None) -> str:
    if most == 0:
        return '""'
    more = f'("," {item})' + ("*" if most is None else f"{{{max(0, least - 1)},{most - 1}}}")
    if most is None and least > 1:
        more = f'("," {item}){{{least - 1},}}'
    return f"{item} {more}" if least else f"({item} {more})?"


def _bounded(schema: Schema, mark: str) -> str:
    """Return the regular expression of a text of bounded length, which does not hold `mark`."""
    bounded = f"/(?s:.{{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}})/"
    if is_mark(mark):
        return bounded
    escaped = re.escape(mark).replace("/", "\\/").replace("\\\n", "\\n")
    return f"{bounded} & ~/(?s:.*{escaped}.*)/"


def _unheld_paths(schema: Any, path: str, *, is_deep: bool) -> Iterator[str]:
    """Yield where a schema bounds a text in a way that only JSON's rules hold; without `is_deep`
    values of arguments are JSON unless they are texts."""
    if not isinstance(schema, dict):
        return
    if schema.get("type", "string") == "string":
        yield from (f"{path}.{key}" for key in _UNHELD if key in schema)
    for key, value in (schema.get("properties") or {}).items():
        if is_deep or read_as_text(schema, key):
            yield from _unheld_paths(value, f"{path}.properties.{key}", is_deep=is_deep)
    if is_deep:
        yield from _unheld_paths(schema.get("items"), f"{path}.items", is_deep=True)


def listed(schema: Schema) -> list[str]:
    """Return the texts of which a schema allows one, if it lists them."""
    return [value for value in constants(schema) if isinstance(value, str)]


def resolved(schema: Any, root: Schema) -> Schema:
    """Return a schema behind its references."""
    for _ in range(8):
        if not isinstance(schema, dict) or not isinstance(ref := schema.get("$ref"), str):
            break
        schema = referred(ref, root)
    return schema if isinstance(schema, dict) else {}


def _within(schema: Any, root: Schema) -> Schema:
    """Return a part of a schema that stands by itself."""
    own: Schema = schema if isinstance(schema, dict) else {}
    return own | {key: root[key] for key in ("$defs", "definitions") if key in root}


def json_rule(schema: Schema) -> str:
    """Return a rule of JSON by a schema, written in one way."""
    return "%json " + json.dumps(schema | {"x-guidance": JSON_STYLE}, ensure_ascii=False)


def quoted(text: str) -> str:
    """Return a text as a rule has it."""
    return json.dumps(text, ensure_ascii=False)
