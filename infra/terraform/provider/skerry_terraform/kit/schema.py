"""Schemas: the attributes and blocks of a resource, data source or provider."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import msgspec

from skerry_terraform.kit.messages import Message, message
from skerry_terraform.kit.values import (
    STRING,
    UNKNOWN,
    ListOf,
    MapOf,
    ObjectOf,
    SetOf,
    Type,
    Value,
)

Nesting = Literal["single", "list", "set", "map"]
Check = Callable[[Value], str | None]
"""Says what is wrong with a known value, or None. Collections may hold unknown elements."""

_NESTINGS: dict[Nesting, int] = {"single": 1, "list": 2, "set": 3, "map": 4}


class _Absent:
    """No default: None is one, too."""


ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class Attr:
    """One attribute: of a type, or `nested` attributes in a `nesting`.

    A default implies optional and computed. `replace`: another value is another object (attributes
    of the resource itself only). `keep`: what was computed at creation stays.
    """

    type: Type = STRING
    required: bool = False
    optional: bool = False
    computed: bool = False
    sensitive: bool = False
    write_only: bool = False
    default: Value | _Absent = ABSENT
    replace: bool = False
    keep: bool = False
    nested: Mapping[str, Attr] | None = None
    nesting: Nesting = "single"
    check: Check | None = None
    doc: str = ""
    deprecated: bool = False

    def __post_init__(self) -> None:
        if not (self.required or self.optional or self.computed or self.has_default):
            raise ValueError("an attribute is required, optional, computed or has a default")
        if self.write_only and (self.computed or self.has_default):
            raise ValueError("a write-only attribute is not in the state: nothing can compute it")
        if any(each.replace for each in (self.nested or {}).values()):
            raise ValueError("`replace` is for attributes of the resource itself")

    @property
    def has_default(self) -> bool:
        return self.default is not ABSENT

    @property
    def is_configurable(self) -> bool:
        return self.required or self.optional or self.has_default

    @property
    def is_computed(self) -> bool:
        return self.computed or self.has_default

    @property
    def value_type(self) -> Type:
        if self.nested is None:
            return self.type
        return _nested_type(_object(self.nested, {}), self.nesting)

    def message(self, name: str) -> Message:
        nested = None
        if self.nested is not None:
            nested = message(
                "Object",
                attributes=[attr.message(name) for name, attr in sorted(self.nested.items())],
                nesting=_NESTINGS[self.nesting],
            )
        return message(
            "Attribute",
            name=name,
            type=type_json(self.type) if nested is None else None,
            nested_type=nested,
            description=self.doc,
            required=self.required,
            optional=self.is_configurable and not self.required,
            computed=self.is_computed,
            sensitive=self.sensitive,
            write_only=self.write_only,
            deprecated=self.deprecated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A nested block: `NAME { … }`. Unlike in an object, a misspelt argument is an error."""

    attributes: Mapping[str, Attr]
    blocks: Mapping[str, Block] = field(default_factory=dict[str, "Block"])
    nesting: Nesting = "list"
    min_items: int = 0
    max_items: int = 0  # 0: any number
    doc: str = ""

    @property
    def value_type(self) -> Type:
        return _nested_type(_object(self.attributes, self.blocks), self.nesting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Of a resource and so on. `version` rises when the states of before need an `upgrade`."""

    attributes: Mapping[str, Attr]
    blocks: Mapping[str, Block] = field(default_factory=dict[str, Block])
    version: int = 0
    doc: str = ""
    type: ObjectOf = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", _object(self.attributes, self.blocks))

    def message(self) -> Message:
        block = _block_message(self.attributes, self.blocks, self.doc)
        return message("Schema", version=self.version, block=block)


def type_json(type_: Type) -> bytes:
    return msgspec.json.encode(type_.json())


def _object(attributes: Mapping[str, Attr], blocks: Mapping[str, Block]) -> ObjectOf:
    members: dict[str, Attr | Block] = {**attributes, **blocks}
    return ObjectOf({name: member.value_type for name, member in members.items()})


def _nested_type(element: ObjectOf, nesting: Nesting) -> Type:
    kinds: dict[str, Callable[[Type], Type]] = {"list": ListOf, "set": SetOf, "map": MapOf}
    return element if nesting == "single" else kinds[nesting](element)


def _block_message(
    attributes: Mapping[str, Attr], blocks: Mapping[str, Block], doc: str
) -> Message:
    return message(
        "Block",
        attributes=[attr.message(name) for name, attr in sorted(attributes.items())],
        block_types=[_nested_message(name, block) for name, block in sorted(blocks.items())],
        description=doc,
    )


def _nested_message(name: str, block: Block) -> Message:
    return message(
        "NestedBlock",
        type_name=name,
        block=_block_message(block.attributes, block.blocks, block.doc),
        nesting=_NESTINGS[block.nesting],
        min_items=block.min_items,
        max_items=block.max_items,
    )


# --- checks --------------------------------------------------------------------------------------


def one_of(*allowed: str) -> Check:
    def check(value: Value) -> str | None:
        return None if value in allowed else f"must be one of {', '.join(allowed)}; got {value!r}"

    return check


def matching(pattern: str, what: str) -> Check:
    """Return a check of text against a whole pattern; `what` says what it has to be."""
    compiled = re.compile(pattern)

    def check(value: Value) -> str | None:
        is_good = isinstance(value, str) and compiled.fullmatch(value) is not None
        return None if is_good else f"must be {what}; got {value!r}"

    return check


def between(least: float, most: float) -> Check:
    """Return a number that a 64-bit float keeps."""

    def check(value: Value) -> str | None:
        if isinstance(value, Decimal):
            return f"has more digits than are kept; got {value}"
        return None if least <= value <= most else f"must be {least} to {most}; got {value}"

    return check


def above(least: float, most: float) -> Check:
    """Check as `between` does, without `least` itself."""
    within = between(least, most)

    def check(value: Value) -> str | None:
        return f"must be above {least}; got {value}" if value == least else within(value)

    return check


def whole(least: int, most: int) -> Check:
    """Return an integer; Terraform has only one kind of number."""

    def check(value: Value) -> str | None:
        is_whole = isinstance(value, int) and least <= value <= most
        return None if is_whole else f"must be a whole number, {least} to {most}; got {value}"

    return check


def each(check: Check, *, least: int = 0) -> Check:
    """Check every known element of a list, set or map, and how many there must be at least."""

    def check_all(value: Value) -> str | None:
        if len(value) < least:
            return f"must have at least {least} element{'s' if least > 1 else ''}"
        elements: list[Any] = list(value.values()) if isinstance(value, dict) else value
        complaints = (check(one) for one in elements if one is not None and one is not UNKNOWN)
        return next((complaint for complaint in complaints if complaint), None)

    return check_all
