"""Random JSON schemas within what grammars support, for property tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

NAMES = st.sampled_from(
    ["a", "b", "name", "size", "ünïcode", "with space", 'quo"te', "back\\slash"]
)
SCALARS = st.none() | st.booleans() | st.integers(-1000, 1000) | st.text(max_size=8)


def _strings() -> st.SearchStrategy[Schema]:
    lengths = st.tuples(st.integers(0, 3), st.integers(3, 12))
    return (
        lengths.map(lambda n: {"type": "string", "minLength": n[0], "maxLength": n[1]})
        | st.sampled_from(["date", "time", "uuid", "ipv4"]).map(
            lambda name: {"type": "string", "format": name}
        )
        | st.sampled_from(["^[a-c]{2,4}$", "^x|y$", r"^\d+-\d{2}$"]).map(
            lambda pattern: {"type": "string", "pattern": pattern, "maxLength": 12}
        )
    )


def _numbers() -> st.SearchStrategy[Schema]:
    bounds = st.tuples(st.integers(-500, 0), st.integers(0, 500))
    return (
        bounds.map(lambda b: {"type": "integer", "minimum": b[0], "maximum": b[1]})
        | bounds.map(lambda b: {"type": "number", "minimum": b[0], "exclusiveMaximum": b[1] + 1})
        | st.just({"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000})
    )


def _leaves() -> st.SearchStrategy[Schema]:
    return (
        _strings()
        | _numbers()
        | st.sampled_from([{"type": "boolean"}, {"type": "null"}])
        | st.lists(SCALARS, min_size=1, max_size=4).map(lambda values: {"enum": values})
        | SCALARS.map(lambda value: {"const": value})
    )


def _arrays(items: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.tuples(items, st.integers(0, 1), st.integers(1, 3)).map(
        lambda a: {"type": "array", "items": a[0], "minItems": a[1], "maxItems": a[2]}
    )


@st.composite
def _objects(draw: st.DrawFn, values: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(NAMES, values, min_size=1, max_size=3))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _unions(members: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.lists(members, min_size=1, max_size=3).map(lambda schemas: {"anyOf": schemas})


def schemas() -> st.SearchStrategy[Schema]:
    """Schemas whose instances are short: every string, array and number is bounded."""
    return st.recursive(
        _leaves(),
        lambda inner: _arrays(inner) | _objects(inner) | _unions(inner),
        max_leaves=6,
    )
