"""Inputs that are programs: bytes turned at random are none, so templates and schemas are made.

A mutation takes an input, and returns another one that is mostly well-formed, so that what lies
behind the parser is reached; one in a few is left to libFuzzer, which breaks it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

NAMES = ("m", "x", "n", "messages", "tools", "loop", "caller", "undefined")
CONSTANTS = (
    *("0", "1", "-1", "3", "2.5", "99999999999", "9" * 40, "none", "true", "false"),
    *("''", "'a'", "'b c'", "'%s'", "'1e3'", "'\\u00e9'", "'content'", "'role'"),
)
BINARY = (
    *("+", "-", "*", "**", "/", "//", "%", "~", "==", "!=", "<", ">=", "in", "not in", "and"),
    "or",
)
FILTERS = (
    *("abs", "capitalize", "float", "lower", "title", "trim", "upper", "count", "dictsort"),
    *("d(1)", "default('a', true)", "first", "items", "last", "length", "list", "max", "min"),
    *("map('upper')", "map(attribute='role')", "map('!charge')", "map('join', '-')", "reverse"),
    *("reject", "rejectattr('x')", "select('string')", "selectattr('role', 'equalto', 'user')"),
    *("sort", "unique", "safe", "string", "int", "int(3, 16)", "join", "join('-')", "nothing"),
    *("join(',', 'role')", "join(attribute='role')", "replace('a', 'bb')", "replace('', 'x', 2)"),
    *("indent", "indent(2, true)", "indent(99)", "indent(-1)", "tojson", "tojson(indent=2)"),
    *("tojson(indent=99)", "tojson(separators=(',', ':'))", "tojson(separators=('xxxxxxxxx', ''))"),
    *("tojson(sort_keys=true)", "replace('a', 'b', -1)", "map('nothing')", "replace(1, 2)"),
)
TESTS = ("defined", "string", "mapping", "none", "iterable", "divisibleby(2)", "in [1]", "sameas 1")
METHODS = (
    *("upper()", "split()", "split('a')", "strip()", "startswith('a')", "join(['a', 'b'])"),
    *("join([1])", "join(messages)", "replace('a', 'bb')", "replace('a', 'b', 1)", "find('a')"),
    *("format(1)", "items()", "keys()", "values()", "get('role')", "index('a')", "count(1)"),
    *("append(1)", "pop()", "__class__", "__init__", "role", "content", "tool_calls", "real"),
    *("encode()", "join", "center(9)", "partition('a')", "splitlines()"),
)
CALLS = (
    *("range({0})", "range(1, {0}, 2)", "dict(a={0})", "namespace(a={0})", "raise_exception({0})"),
    *("strftime_now('%Y')", "strftime_now({0})", "f({0})", "caller()", "super()", "self.b()"),
    *("cycler({0})", "{0}({1})", "f(*{0})", "dict(**{0})", "range(9999999)"),
)


FILES = ("include 'a'", "import 'a' as m", "extends 'a'", "from 'a' import x")


def template(chance: Random, depth: int = 3) -> str:
    """Return a chat template of a few statements."""
    return "".join(_statement(chance, depth) for _ in range(chance.randint(1, 4)))


def _statement(chance: Random, depth: int) -> str:
    here = _expression(chance, depth)
    if depth == 0:
        return chance.choice(("text", "{{ " + here + " }}", "\n  ", "{# #}", "{{- " + here + " }}"))
    body = _statement(chance, depth - 1)
    return chance.choice(
        (
            f"{{{{ {here} }}}}",
            f"{{{{- {here} -}}}}",
            f"{{% set x = {here} %}}",
            f"{{% set n.a = {here} %}}",
            f"{{% set x %}}{body}{{% endset %}}",
            f"{{% set x, m = {here} %}}",
            f"{{% for m in {here} %}}{body}{{% endfor %}}",
            f"{{% for m in {here} if m %}}{body}{{% else %}}{body}{{% endfor %}}",
            f"{{% for m, x in {here} %}}{body}{{% break %}}{{% endfor %}}",
            f"{{% for m in {here} recursive %}}{{{{ loop(m) }}}}{{% endfor %}}",
            f"{{% for m in messages %}}{{% if {here} %}}{{% continue %}}{{% endif %}}{body}"
            "{% endfor %}",
            f"{{% if {here} %}}{body}{{% elif {here} %}}{body}{{% else %}}{body}{{% endif %}}",
            f"{{% macro f(x, m=1) %}}{body}{{% endmacro %}}{{{{ f({here}) }}}}",
            f"{{% macro f(x) %}}{{{{ caller() }}}}{{% endmacro %}}{{% call f({here}) %}}{body}"
            "{% endcall %}",
            f"{{% filter {chance.choice(FILTERS)} %}}{body}{{% endfilter %}}",
            f"{{% block b %}}{body}{{% endblock %}}",
            f"{{% generation %}}{body}{{% endgeneration %}}",
            f"{{% with x = {here} %}}{body}{{% endwith %}}",
            f"{{% raw %}}{body}{{% endraw %}}",
            f"{{% {chance.choice(FILES)} %}}" if chance.random() < 0.1 else body,
        )
    )


def _expression(chance: Random, depth: int) -> str:
    if depth <= 0:
        return chance.choice((*NAMES, *CONSTANTS, "messages[0]", "messages[1].content"))

    def part() -> str:
        return _expression(chance, depth - chance.randint(1, 2))

    kind = chance.randrange(13)
    if kind < 3:
        return f"{part()}|{chance.choice(FILTERS)}"
    if kind < 5:
        return f"({part()} {chance.choice(BINARY)} {part()})"
    if kind < 7:
        return f"{part()}.{chance.choice(METHODS)}"
    if kind < 9:
        return chance.choice(CALLS).format(part(), part())
    return (
        f"[{part()}, {part()}]",
        f"({part()}, {part()})" if chance.random() < 0.5 else f"{{{part()}: {part()}}}",
        f"{part()}[{part()}]" if chance.random() < 0.5 else f"{part()}[{part()}:{part()}]",
        f"({part()} if {part()} is {chance.choice(TESTS)} else {part()})",
    )[kind - 9]


TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
KEYWORDS = (
    *("type", "const", "enum", "properties", "required", "items", "prefixItems", "anyOf", "allOf"),
    *("oneOf", "oneOf", "$ref", "additionalProperties", "patternProperties", "$defs", "format"),
    *("pattern", "minLength", "maxItems", "minimum", "multipleOf", "minProperties", "uniqueItems"),
    *("nullable", "propertyNames", "title", "additionalItems", "definitions", "not", "$dynamicRef"),
)
KEYS = ("a", "b", "kind", "a/b", "~", "0")
REFERENCES = (
    *("#", "#/$defs/a", "#/$defs/kind", "#/properties/a", "#/oneOf/0", "#/oneOf/9", "#/$defs/a~1b"),
    *("#/$defs/~0", "other", "#a", "#/anyOf/0/properties/b", "#/$defs"),
)
FORMATS = ("date", "email", "uuid", "color", "uri")


def value(chance: Random, depth: int = 2) -> Any:
    """Return some JSON."""
    kind = chance.randrange(8 if depth else 6)
    plain = (None, chance.random() < 0.5, chance.randint(-3, 3), 1.0, chance.choice(KEYS))
    if kind < 5:
        return plain[kind]
    if kind == 5:
        return chance.choice((1 << 62, 1e300, -(1 << 70), 0.5, ""))
    if kind == 6:
        return [value(chance, depth - 1) for _ in range(chance.randrange(3))]
    return {chance.choice(KEYS): value(chance, depth - 1) for _ in range(chance.randrange(3))}


def schema(chance: Random, depth: int = 4) -> Any:
    """Return a JSON schema, or nearly one."""
    if depth == 0 or chance.random() < 0.08:
        return chance.choice((True, False, {}, {"type": chance.choice(TYPES)}, value(chance, 1)))
    if chance.random() < 0.25:
        return _tagged(chance, depth)
    found: dict[str, Any] = {}
    for _ in range(chance.randint(1, 4)):
        keyword = chance.choice(KEYWORDS)
        found[keyword] = _of_keyword(chance, keyword, depth - 1)
    return found


def _of_keyword(chance: Random, keyword: str, depth: int) -> Any:
    if chance.random() < 0.04:
        return value(chance)
    schemas = [schema(chance, depth) for _ in range(chance.randrange(4))]
    match keyword:
        case "type":
            return chance.choice((chance.choice(TYPES), chance.sample(TYPES, 2), "text", []))
        case "enum":
            return [value(chance) for _ in range(chance.randrange(4))]
        case "const" | "title":
            return value(chance)
        case "properties" | "patternProperties" | "$defs" | "definitions":
            return {chance.choice(KEYS): each for each in schemas}
        case "required":
            return chance.sample(KEYS, chance.randrange(3))
        case "anyOf" | "allOf" | "prefixItems":
            return schemas
        case "oneOf":
            same = chance.random() < 0.7
            return [_tagged(chance, depth) for _ in range(chance.choice((2, 3, 5, 18)))] if same \
                else schemas  # fmt: skip
        case "items":
            return schemas if chance.random() < 0.2 else schema(chance, depth)
        case "$ref" | "$dynamicRef":
            return chance.choice(REFERENCES)
        case "format":
            return chance.choice(FORMATS)
        case "pattern":
            return "a+"
        case "uniqueItems" | "nullable":
            return chance.random() < 0.5
        case "propertyNames":
            return chance.choice(({"type": "string"}, {"type": "integer"}))
        case "additionalProperties" | "additionalItems" | "not":
            return schema(chance, depth)
        case _:
            return chance.choice((0, 1, 2, -1, 1.5, True, 1 << 31))


def _tagged(chance: Random, depth: int) -> dict[str, Any]:
    """Return a branch that a property's constants may distinguish."""
    names = chance.sample(("kind", "a", "b"), chance.randint(1, 3))
    properties: dict[str, Any] = {}
    for name in names:
        constants = [value(chance, 1) for _ in range(chance.randint(1, 2))]
        properties[name] = chance.choice(
            (
                {"const": constants[0]},
                {"enum": constants},
                {"type": chance.choice(TYPES)},
                {"$ref": chance.choice(REFERENCES)},
                schema(chance, max(depth - 2, 0)),
            )
        )
    found: dict[str, Any] = {"properties": properties}
    if chance.random() < 0.9:
        found["required"] = chance.sample(names, chance.randint(1, len(names)))
    if chance.random() < 0.7:
        found["type"] = chance.choice(("object", "object", ["object", "null"], "string"))
    return found


def _mutated_template(data: bytes, chance: Random) -> bytes:
    made = template(chance, chance.choice((1, 1, 2, 2, 3))).encode()
    if chance.random() < 0.5:
        return made
    cut = chance.randint(0, len(data))
    return data[:cut] + made + data[cut:]


def _mutated_schema(data: bytes, chance: Random) -> bytes:
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    places = list(_places(found))
    if not places or chance.random() < 0.3:
        return json.dumps(schema(chance, chance.choice((1, 2, 2, 3, 3, 4)))).encode()
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(places)
        keyword = key if key in KEYWORDS else "not"
        holder[key] = _of_keyword(chance, str(keyword), chance.choice((0, 1, 2)))
    return json.dumps(found).encode()


def _places(found: Any) -> list[tuple[Any, Any]]:
    """Return all places inside a JSON value: what holds them, and where in it."""
    waiting, places = [found], list[tuple[Any, Any]]()
    while waiting:
        here = waiting.pop()
        keys: list[Any] = list(here) if isinstance(here, dict) else []
        keys += range(len(here)) if isinstance(here, list) else ()
        places += [(here, key) for key in keys]
        waiting += [here[key] for key in keys]
    return places


MUTATIONS: dict[str, Mutation] = {"templates": _mutated_template, "schemas": _mutated_schema}
