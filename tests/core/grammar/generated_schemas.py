"""Random schemas of 1 to 40 properties, each with a shortest value, known by construction."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Schema = dict[str, Any]
Generated = tuple[Schema, Any]
"""A schema, and one of its shortest values."""

WORDS = [
    *("id", "name", "title", "price", "städte", "note-2", "is_open", "sort", "zip", "tags", "x"),
    *("größe", "createdAt", "parent"),
]
PATTERNS = {  # and a shortest match
    "^[A-Z]{3}-[0-9]{4}$": "ABC-1234",
    "^#[0-9a-f]{6}$": "#000000",
    r"^\d+\.\d{2}$": "0.00",
    "^(red|green|blue)(-light)?$": "red",
    "^[a-z]+(_[a-z]+){2}$": "a_a_a",
    r"^[^@]+@[^@]+\.[a-z]{2,}$": "a@a.aa",
    "^x|y$": "x",
    "[0-9]{2}": "00",
}
FORMATS = {
    "date": "2000-01-01",
    "time": "00:00:00Z",
    "date-time": "2000-01-01T00:00:00Z",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "ipv4": "0.0.0.0",
}


def generated(seed: int) -> Generated:
    """Return an object's schema; its size grows with the seed."""
    rng = Random(seed)
    if seed % 10 == 9:
        return _recursive(rng)
    return _object(rng, 1 + seed % 40, 3)


def shortest_text(value: Any) -> str:
    """Write a value as grammars have it."""
    return json.dumps(value, ensure_ascii=False)


def _any(rng: Random, depth: int) -> Generated:
    makers = [_string, _text, _constant, _integer, _number, _plain, _array]
    if depth:
        makers += [_nested, _union]
    return rng.choice(makers)(rng, depth)


def _object(rng: Random, count: int, depth: int) -> Generated:
    names = [f"{rng.choice(WORDS)}{index or ''}" for index in range(count)]
    made = {name: _any(rng, depth - 1) for name in names}
    share = rng.choice((0.0, 0.5, 1.0, 1.0))
    required = [name for name in names if rng.random() < share]
    schema = {
        "type": "object",
        "properties": {name: each for name, (each, _) in made.items()},
        "required": required,
        "additionalProperties": False,
    }
    return schema, {name: made[name][1] for name in required}


def _nested(rng: Random, depth: int) -> Generated:
    return _object(rng, rng.randint(1, 4), depth)


def _string(rng: Random, depth: int) -> Generated:
    low = rng.choice((0, 0, 0, 1, 4, 30))
    schema: Schema = {"type": "string"} | ({"minLength": low} if low else {})
    if rng.random() < 0.3:
        schema["maxLength"] = low + rng.randint(0, 20)
    return schema, "a" * low


def _text(rng: Random, depth: int) -> Generated:
    name, known = rng.choice((("pattern", PATTERNS), ("format", FORMATS)))
    what = rng.choice(sorted(known))
    return {"type": "string", name: what}, known[what]


def _constant(rng: Random, depth: int) -> Generated:
    values = ["red", "green", "a longer one with words", 17, None, True, 2.5, 'a "quoted" one', "é"]
    chosen = rng.sample(values, rng.randint(1, 5))
    if len(chosen) == 1:
        return {"const": chosen[0]}, chosen[0]
    return {"enum": chosen}, min(chosen, key=lambda value: len(shortest_text(value)))


def _integer(rng: Random, depth: int) -> Generated:
    low = rng.choice((None, 0, 1, 7, 100, 12345, -40))
    schema: Schema = {"type": "integer"} | ({} if low is None else {"minimum": low})
    if rng.random() < 0.4:
        schema["maximum"] = (0 if low is None else low) + rng.randint(0, 3000)
    if rng.random() < 0.3:
        schema["multipleOf"] = step = rng.choice((1, 5, 7, 30))
        schema.pop("maximum", None)
        start = max(0, low or 0)
        return schema, -(-start // step) * step
    high = schema.get("maximum", 9)
    return schema, max(low or 0, 0) if high >= 0 else high


def _number(rng: Random, depth: int) -> Generated:
    schema, value = rng.choice(
        (
            ({"minimum": 0, "maximum": 1}, 0),
            ({"exclusiveMinimum": 0, "maximum": 1}, 1),
            ({"minimum": 0.25, "maximum": 0.75}, 0.3),
            ({"exclusiveMinimum": -0.5}, 0),
            ({"minimum": 1500.5}, 1501),
            ({}, 0),
        )
    )
    return {"type": "number", **schema}, value


def _plain(rng: Random, depth: int) -> Generated:
    return rng.choice((({"type": "boolean"}, True), ({"type": "null"}, None)))


def _array(rng: Random, depth: int) -> Generated:
    items, value = _any(rng, max(0, depth - 1)) if depth else _string(rng, 0)
    low = rng.choice((0, 0, 1, 2, 5))
    schema: Schema = {"type": "array", "items": items} | ({"minItems": low} if low else {})
    if rng.random() < 0.3:
        schema["maxItems"] = low + rng.randint(0, 3)
    return schema, [value] * low


def _union(rng: Random, depth: int) -> Generated:
    if rng.random() < 0.5:  # told apart by a constant
        branches = [_object(rng, rng.randint(1, 3), depth) for _ in range(rng.randint(2, 3))]
        made = [_tagged(f"kind {index}", *branch) for index, branch in enumerate(branches)]
    else:
        made = [_any(rng, depth - 1) for _ in range(rng.randint(2, 3))]
    value = min((value for _, value in made), key=lambda value: len(shortest_text(value)))
    return {"anyOf": [schema for schema, _ in made]}, value


def _tagged(tag: str, schema: Schema, value: Any) -> Generated:
    properties = {"kind": {"const": tag}, **schema["properties"]}
    required = ["kind", *schema["required"]]
    made = {"kind": tag, **value}
    return {**schema, "properties": properties, "required": [*dict.fromkeys(required)]}, made


def _recursive(rng: Random) -> Generated:
    """Return a tree, a list or an expression, beside a few properties."""
    makers: list[Callable[[], Generated]] = [
        lambda: (
            _closed(value={"type": "integer"}, kids=_list("#/$defs/node")),
            {"value": 0, "kids": []},
        ),
        lambda: (
            _closed(head={"type": "string"}, tail={"anyOf": [{"type": "null"}, _NODE]}),
            {"head": "", "tail": None},
        ),
        lambda: (
            {"anyOf": [{"type": "number"}, _closed(op=_OPERATOR, left=_NODE, right=_NODE)]},
            0,
        ),
    ]
    node, value = rng.choice(makers)()
    schema, rest = _object(rng, rng.randint(1, 8), 2)
    schema["properties"]["root"] = _NODE
    schema["required"].append("root")
    return {**schema, "$defs": {"node": node}}, {**rest, "root": value}


_OPERATOR: Schema = {"enum": ["+", "-"]}
_NODE: Schema = {"$ref": "#/$defs/node"}


def _list(reference: str) -> Schema:
    return {"type": "array", "items": {"$ref": reference}}


def _closed(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
