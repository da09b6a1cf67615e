"""Short values of JSON schemas, as candidates for the way to an output's end.

A value need not be right: whoever takes one checks it against the grammar first. So what is rare in
schemas is left out here, and is found by a search.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import ceil, floor
from typing import Any, Final

from skerry_core.grammar.sample import pattern_samples

MAX_LENGTH: Final = 16_384  # characters of a value
MAX_DEPTH: Final = 80
MAX_ROUNDS: Final = 32  # in which references find out about each other

FORMATS: Final = {
    "date": "2000-01-01",
    "time": "00:00:00Z",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "P1D",
    "email": "a@b.co",
    "hostname": "a",
    "ipv4": "0.0.0.0",
    "ipv6": "::",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "uri": "a:b",
}
_BOUNDS: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
Schema = dict[str, Any]


def shortest_values(schema: object) -> Iterator[str]:
    """Yield a short value of each schema in a schema, each constant of its enumerations, and a
    match of each alternative of its expressions."""
    shortest = _Shortest(schema)
    for node in _nodes(schema):
        text = shortest.of(node)
        if text is not None:
            yield text
        if isinstance(values := node.get("enum"), list):
            yield from map(_dump, values)
        if isinstance(pattern := node.get("pattern"), str):
            yield from map(_dump, pattern_samples(pattern))


class _Shortest:
    """Short values of one schema's parts, references included."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._targets: dict[str, str] = {}  # a short value of what each reference names
        references = {
            node["$ref"]: self._named(node["$ref"])
            for node in _nodes(root)
            if isinstance(node.get("$ref"), str)
        }
        for _ in range(MAX_ROUNDS):  # a fixed point: what is recursive ends somewhere
            before = dict(self._targets)
            for reference, target in references.items():
                text = self.of(target)
                known = self._targets.get(reference)
                if text is not None and (known is None or len(text) < len(known)):
                    self._targets[reference] = text
            if before == self._targets:
                break

    def of(self, node: object, depth: int = 0) -> str | None:
        """Return a short value as JSON; None when none is known."""
        if node is True or node == {}:
            return "0"
        if not isinstance(node, dict) or depth > MAX_DEPTH:
            return None
        try:
            text = self._of(node, depth + 1)
        except (TypeError, ValueError, OverflowError):  # of a schema that is none
            return None
        return text if text is not None and len(text) <= MAX_LENGTH else None

    def _of(self, node: Schema, depth: int) -> str | None:
        if "const" in node:
            return _dump(node["const"])
        if "enum" in node:
            return min(map(_dump, node["enum"]), key=len)
        if "$ref" in node:
            return self._targets.get(node["$ref"])
        for key in ("anyOf", "oneOf"):
            if key in node:
                rest = {name: value for name, value in node.items() if name != key}
                branches = [_merged([rest, branch]) if rest else branch for branch in node[key]]
                return self._shortest_of(branches, depth)
        if "allOf" in node:
            rest = {name: value for name, value in node.items() if name != "allOf"}
            parts = [self._resolved(each) for each in node["allOf"]]
            return self.of(_merged([rest, *parts]), depth)
        kind = node.get("type")
        if isinstance(kind, list):
            return self._shortest_of([{**node, "type": each} for each in kind], depth)
        if kind is None:
            kind = _kind_of(node)
        match kind:
            case "null":
                return "null"
            case "boolean":
                return "true"
            case "string":
                return _string(node)
            case "integer" | "number":
                return _number(node, is_whole=kind == "integer")
            case "array":
                return self._array(node, depth)
            case "object":
                return self._object(node, depth)
            case _:
                return None

    def _shortest_of(self, nodes: Iterable[object], depth: int) -> str | None:
        texts = [text for node in nodes if (text := self.of(node, depth)) is not None]
        return min(texts, key=len, default=None)

    def _array(self, node: Schema, depth: int) -> str | None:
        first, more = node.get("prefixItems", []), node.get("items", True)
        count = node.get("minItems", 0)
        if count > MAX_LENGTH:
            return None
        texts = [self.of(each, depth) for each in first[:count]]
        if count > len(texts):
            texts += [self.of(more, depth)] * (count - len(texts))
        whole = [text for text in texts if text is not None]
        return f"[{', '.join(whole)}]" if len(whole) == count else None

    def _object(self, node: Schema, depth: int) -> str | None:
        properties, required = node.get("properties", {}), node.get("required", [])
        others = node.get("additionalProperties", True)
        texts = {name: self.of(properties.get(name, others), depth) for name in required}
        missing = node.get("minProperties", 0) - len(texts)
        if missing > 0:
            optional = {name: self.of(properties[name], depth) for name in properties}
            known = [(len(text), name) for name, text in optional.items() if text is not None]
            spare = [name for _, name in sorted(known) if name not in texts][:missing]
            texts |= {name: optional[name] for name in spare}
            for index in range(min(missing - len(spare), MAX_LENGTH)):
                texts[f"p{index}"] = self.of(others, depth)
        order = [name for name in properties if name in texts]
        order += [name for name in texts if name not in properties]
        parts = [f"{_dump(name)}: {text}" for name in order if (text := texts[name]) is not None]
        return f"{{{', '.join(parts)}}}" if len(parts) == len(order) else None

    def _resolved(self, node: Any) -> Any:
        for _ in range(MAX_DEPTH):
            if not (isinstance(node, dict) and isinstance(node.get("$ref"), str)):
                break
            node = self._named(node["$ref"])
        return node

    def _named(self, reference: str) -> Any:
        """Return what a local reference (RFC 6901) names."""
        node: Any = self._root
        for part in reference.removeprefix("#").split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and key.isdecimal() and int(key[:9]) < len(node):
                node = node[int(key[:9])]
            else:
                node = node.get(key) if isinstance(node, dict) else None
        return node


def _nodes(value: object) -> Iterator[Schema]:
    """Yield every object in a schema; a few of them are none."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as found:
                yield found
                waiting += found.values()
            case list() as found:
                waiting += found
            case _:
                pass


def _merged(parts: Iterable[Any]) -> Schema:
    """Return a schema of all that several say, roughly: the narrower bound, all properties."""
    whole: Schema = {}
    for part in parts:
        for key, value in part.items() if isinstance(part, dict) else ():
            known = whole.get(key)
            if key == "properties" and isinstance(known, dict):
                whole[key] = {**known, **value}
            elif key == "required" and isinstance(known, list):
                whole[key] = [*known, *value]
            elif key in _BOUNDS and known is not None:
                whole[key] = max(known, value)
            else:
                whole[key] = value
    return whole


def _kind_of(node: Schema) -> str | None:
    if "properties" in node or "required" in node:
        return "object"
    if "prefixItems" in node or "items" in node:
        return "array"
    return "string" if "pattern" in node or "format" in node else None


def _string(node: Schema) -> str | None:
    if "pattern" in node:
        samples = pattern_samples(node["pattern"])
        return _dump(samples[0]) if samples else None
    if "format" in node:
        value = FORMATS.get(node["format"])
        return None if value is None else _dump(value)
    length = node.get("minLength", 0)
    return None if length > MAX_LENGTH else f'"{"a" * length}"'


def _number(node: Schema, *, is_whole: bool) -> str | None:
    low, high = _bound(node, "minimum", max), _bound(node, "maximum", min)
    step = Fraction(str(node["multipleOf"])) if "multipleOf" in node else None
    tries = [Fraction(each) for each in range(-9, 10)]
    for bound in (low, high):
        if bound is not None:
            scales = [Fraction(1), *([] if step is None else [step])]
            scales += [] if is_whole else [Fraction(1, 10**digits) for digits in range(1, 7)]
            for scale in scales:
                near = (floor(bound / scale), ceil(bound / scale))
                tries += [(each + more) * scale for each in near for more in (-1, 0, 1)]
    if step is not None:
        tries += [step, -step]
    texts = [
        _decimal(each)
        for each in tries
        if _is_within(each, node)
        and (step is None or (each / step).denominator == 1)
        and (not is_whole or each.denominator == 1)
    ]
    return min(texts, key=lambda text: (len(text), text), default=None)


def _bound(node: Schema, side: str, narrower: Any) -> Fraction | None:
    keys = (side, "exclusive" + side.capitalize())
    found = [Fraction(str(node[key])) for key in keys if key in node]
    return narrower(found) if found else None


def _is_within(value: Fraction, node: Schema) -> bool:
    return (
        ("minimum" not in node or value >= Fraction(str(node["minimum"])))
        and ("exclusiveMinimum" not in node or value > Fraction(str(node["exclusiveMinimum"])))
        and ("maximum" not in node or value <= Fraction(str(node["maximum"])))
        and ("exclusiveMaximum" not in node or value < Fraction(str(node["exclusiveMaximum"])))
    )


def _decimal(value: Fraction) -> str:
    """Write a number that has few decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.12f}".rstrip("0")


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
