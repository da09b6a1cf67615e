"""Terraform's values as Python's, and their two forms on the wire: msgpack and JSON.

| Terraform | Python |
|---|---|
| null, unknown | None, UNKNOWN |
| string, bool | str, bool |
| number | int; float where that is exact enough to come back the same, else Decimal |
| list, set | list |
| map, object | dict |

An unknown is a msgpack extension. A refined one says more (such as a prefix), which may be dropped.
A fraction travels as decimal text, so that 0.1 stays 0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

Value = Any

MAX_EXPONENT = 4_000  # of a number as text: Python writes no integer of more than 4300 digits
_UNKNOWN_EXTENSION = msgspec.msgpack.Ext(0, b"\0")
_INT64 = range(-(1 << 63), 1 << 63)


class ValueMismatch(TypeError):
    """A value that is not of its type; the message says where."""


class Unknown:
    """What is known only after apply. It is neither true nor false: test `is UNKNOWN`."""

    def __repr__(self) -> str:
        return "(known after apply)"

    def __bool__(self) -> bool:
        raise TypeError("an unknown value was asked whether it is true")


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class Type:
    """A type of Terraform. Subclasses convert what is neither null nor unknown."""

    def json(self) -> Any:
        """Return it as schemas name it."""
        raise NotImplementedError

    def known(self, raw: Any, where: str, convert: Convert) -> Value:
        """Return a decoded value, checked; `convert` takes (type, raw, where) of what is inside."""
        raise NotImplementedError

    def raw(self, value: Value, where: str) -> Any:
        """Return what is to be encoded. Raises ValueMismatch."""
        return self.known(value, where, to_raw)


Convert = Callable[[Type, Any, str], Value]


@dataclass(frozen=True, slots=True)
class _Scalar(Type):
    name: str
    python: type

    def json(self) -> Any:
        return self.name

    def known(self, raw: Any, where: str, convert: Convert) -> Value:
        return self.raw(raw, where)

    def raw(self, value: Value, where: str) -> Any:
        if type(value) is not self.python:
            raise _mismatch(value, self.name, where)
        return value


@dataclass(frozen=True, slots=True)
class _Number(Type):
    def json(self) -> Any:
        return "number"

    def known(self, raw: Any, where: str, convert: Convert) -> Value:
        if isinstance(raw, str):
            try:
                return number(raw)
            except ValueError:
                raise _mismatch(raw, "number", where) from None
        self.raw(raw, where)
        return int(raw) if isinstance(raw, float) and raw.is_integer() else raw

    def raw(self, value: Value, where: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise _mismatch(value, "number", where)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return value if isinstance(value, int) and value in _INT64 else str(value)


@dataclass(frozen=True, slots=True)
class ListOf(Type):
    element: Type

    def json(self) -> Any:
        return ["list", self.element.json()]

    def known(self, raw: Any, where: str, convert: Convert) -> Value:
        if not isinstance(raw, list | tuple):
            raise _mismatch(raw, "list", where)
        return [convert(self.element, each, f"{where}[{i}]") for i, each in enumerate(raw)]


@dataclass(frozen=True, slots=True)
class SetOf(ListOf):
    """Also a list in Python, in any order."""

    def json(self) -> Any:
        return ["set", self.element.json()]


@dataclass(frozen=True, slots=True)
class MapOf(Type):
    element: Type

    def json(self) -> Any:
        return ["map", self.element.json()]

    def known(self, raw: Any, where: str, convert: Convert) -> Value:
        if not isinstance(raw, dict):
            raise _mismatch(raw, "map", where)
        return {
            key: convert(self.element, value, f"{where}[{key!r}]") for key, value in raw.items()
        }


@dataclass(frozen=True, slots=True)
class ObjectOf(Type):
    attributes: Mapping[str, Type]

    def json(self) -> Any:
        return ["object", {name: type_.json() for name, type_ in self.attributes.items()}]

    def known(self, raw: Any, where: str, convert: Convert) -> Value:
        """Convert a value; what is missing is null."""
        if not isinstance(raw, dict):
            raise _mismatch(raw, "object", where)
        return {
            name: convert(type_, raw.get(name), f"{where}.{name}".lstrip("."))
            for name, type_ in self.attributes.items()
        }

    def raw(self, value: Value, where: str) -> Any:
        if isinstance(value, dict) and (surplus := value.keys() - self.attributes.keys()):
            raise ValueMismatch(f"{where or 'the object'} has no {', '.join(sorted(surplus))}")
        return self.known(value, where, to_raw)


STRING = _Scalar("string", str)
BOOL = _Scalar("bool", bool)
NUMBER = _Number()


def number(text: str) -> int | float | Decimal:
    """Parse decimal text. Raises ValueError."""
    try:
        exact = Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is not a number") from None
    if not exact.is_finite() or abs(exact.adjusted()) > MAX_EXPONENT:
        raise ValueError(f"{text[:40]!r} is not a number that we take")
    if exact == exact.to_integral_value():
        return int(exact)
    nearest = float(exact)
    return nearest if Decimal(repr(nearest)) == exact else exact


def from_raw(type_: Type, raw: Any, where: str = "") -> Value:
    """Convert decoded msgpack or JSON. Raises ValueMismatch."""
    if raw is None or raw is UNKNOWN:
        return raw
    return type_.known(raw, where, from_raw)


def to_raw(type_: Type, value: Value, where: str = "") -> Any:
    """Return what is to be encoded. Raises ValueMismatch."""
    if value is None:
        return None
    if value is UNKNOWN:
        return _UNKNOWN_EXTENSION
    return type_.raw(value, where)


def decode_msgpack(type_: Type, data: bytes) -> Value:
    """Raises ValueMismatch."""
    try:
        raw = msgspec.msgpack.decode(data, ext_hook=lambda code, data: UNKNOWN)
    except msgspec.DecodeError as error:
        raise ValueMismatch(f"not msgpack: {error}") from None
    return from_raw(type_, raw)


def encode_msgpack(type_: Type, value: Value) -> bytes:
    """Raises ValueMismatch."""
    return msgspec.msgpack.encode(to_raw(type_, value))


_JSON = msgspec.json.Decoder(float_hook=number)


def decode_json(data: bytes) -> Any:
    """Decode raw values of a state file; fractions keep their digits. Raises ValueMismatch."""
    try:
        return _JSON.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ValueMismatch(f"not JSON: {error}") from None


def same(type_: Type, one: Value, other: Value) -> bool:
    """Return whether two values are equal for Terraform; an unknown equals nothing."""
    return not has_unknown(one) and not has_unknown(other) and _key(type_, one) == _key(
        type_, other
    )  # fmt: skip


def _key(type_: Type, value: Value) -> Any:
    """Return what is equal for equal values, whatever a set's order or the kind of a number."""
    if value is None:
        return None
    match type_:
        case SetOf():
            elements = (_key(type_.element, each) for each in value)
            return sorted(map(msgspec.json.encode, elements))
        case ListOf():
            return [_key(type_.element, each) for each in value]
        case MapOf():
            return {key: _key(type_.element, each) for key, each in sorted(value.items())}
        case ObjectOf():
            return {
                name: _key(attribute, value.get(name))
                for name, attribute in type_.attributes.items()
            }
        case _:
            return to_raw(type_, value)


def has_unknown(value: Value) -> bool:
    """Return whether anything inside is unknown."""
    match value:
        case dict():
            return any(map(has_unknown, value.values()))
        case list():
            return any(map(has_unknown, value))
        case _:
            return value is UNKNOWN


def without_unknown(value: Value) -> Value:
    """Return a copy with null for all that is unknown."""
    match value:
        case dict():
            return {key: without_unknown(each) for key, each in value.items()}
        case list():
            return [without_unknown(each) for each in value]
        case _:
            return None if value is UNKNOWN else value


def _mismatch(value: Any, wanted: str, where: str) -> ValueMismatch:
    at = f" at {where}" if where else ""
    return ValueMismatch(f"expected a {wanted}{at}, got {type(value).__name__}")
