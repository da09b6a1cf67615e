"""Terraform's values: what goes over the wire comes back, exactly."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_terraform.kit.values import (
    BOOL,
    NUMBER,
    STRING,
    UNKNOWN,
    ListOf,
    MapOf,
    ObjectOf,
    SetOf,
    Type,
    ValueMismatch,
    decode_json,
    decode_msgpack,
    encode_msgpack,
    from_raw,
    has_unknown,
    number,
    same,
    without_unknown,
)

SCALARS: dict[Type, st.SearchStrategy[Any]] = {
    STRING: st.text(),
    BOOL: st.booleans(),
    NUMBER: st.integers() | st.floats(allow_nan=False, allow_infinity=False),
}


def typed_values() -> st.SearchStrategy[tuple[Type, Any]]:
    """A type and a value of it; nulls and unknowns anywhere."""
    scalars = st.sampled_from(list(SCALARS)).map(lambda type_: (type_, SCALARS[type_]))

    def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return values | st.none() | st.just(UNKNOWN)

    def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        lists = inner.map(lambda one: (ListOf(one[0]), st.lists(optional(one[1]), max_size=3)))
        maps = inner.map(
            lambda one: (MapOf(one[0]), st.dictionaries(st.text(), optional(one[1]), max_size=3))
        )
        objects = st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda members: (
                ObjectOf({name: type_ for name, (type_, _) in members.items()}),
                st.fixed_dictionaries(
                    {name: optional(values) for name, (_, values) in members.items()}
                ),
            )
        )
        return lists | maps | objects

    kinds = st.recursive(scalars, nested, max_leaves=4)
    return kinds.flatmap(lambda kind: optional(kind[1]).map(lambda value: (kind[0], value)))


@given(typed_values())
def test_what_is_sent_comes_back(typed: tuple[Type, Any]) -> None:
    type_, value = typed
    back = decode_msgpack(type_, encode_msgpack(type_, value))
    assert back == value
    assert has_unknown(back) == has_unknown(value)
    assert not has_unknown(without_unknown(value))
    assert same(type_, back, value) != has_unknown(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("1e3", 1000),
        ("-0", 0),
        ("2.50", 2.5),
        (str(1 << 80), 1 << 80),
        ("0.12345678901234567890123", Decimal("0.12345678901234567890123")),
    ],
)
def test_numbers_keep_their_digits(text: str, value: Any) -> None:
    assert number(text) == value
    assert type(number(text)) is type(value)
    sent = encode_msgpack(NUMBER, value)
    assert decode_msgpack(NUMBER, sent) == value


@pytest.mark.parametrize("text", ["", "x", "NaN", "Infinity", "1e5000", "1e99999999"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number"):
        number(text)
    with pytest.raises(ValueMismatch, match="expected a number"):
        decode_msgpack(NUMBER, msgspec.msgpack.encode(text))


def test_fractions_travel_as_text_and_whole_numbers_do_not() -> None:
    assert msgspec.msgpack.decode(encode_msgpack(NUMBER, 0.1)) == "0.1"
    assert msgspec.msgpack.decode(encode_msgpack(NUMBER, 2.0)) == 2
    assert msgspec.msgpack.decode(encode_msgpack(NUMBER, 1 << 64)) == str(1 << 64)


@pytest.mark.parametrize("code", [0, 12])
def test_refined_unknowns_are_unknown(code: int) -> None:
    data = msgspec.msgpack.encode(msgspec.msgpack.Ext(code, b"\x81\x01\xc2"))
    assert decode_msgpack(STRING, data) is UNKNOWN
    assert encode_msgpack(STRING, UNKNOWN) == b"\xd4\x00\x00"


def test_nobody_asks_whether_an_unknown_is_true() -> None:
    with pytest.raises(TypeError, match="unknown value"):
        bool(UNKNOWN)


def test_sets_are_equal_in_any_order() -> None:
    assert same(SetOf(STRING), ["a", "b"], ["b", "a"])
    assert not same(ListOf(STRING), ["a", "b"], ["b", "a"])
    assert not same(SetOf(STRING), ["a", UNKNOWN], ["a", UNKNOWN])
    assert same(SetOf(NUMBER), [1, 0.5], [0.5, 1.0])


@pytest.mark.parametrize(
    ("type_", "value", "told"),
    [
        (STRING, 1, "expected a string, got int"),
        (NUMBER, True, "expected a number, got bool"),
        (ListOf(BOOL), [True, "x"], r"expected a bool at \[1\], got str"),
        (ObjectOf({"a": MapOf(STRING)}), {"a": {"k": 1}}, r"expected a string at a\['k'\]"),
        (ObjectOf({"a": STRING}), {"b": "x"}, "the object has no b"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_place(
    type_: Type, value: Any, told: str
) -> None:
    with pytest.raises(ValueMismatch, match=told):
        encode_msgpack(type_, value)


def test_states_are_read_leniently_and_exactly() -> None:
    type_ = ObjectOf({"a": NUMBER, "new": STRING})
    assert from_raw(type_, decode_json(b'{"a": 0.10, "gone": 1}')) == {"a": 0.1, "new": None}
    with pytest.raises(ValueMismatch, match="not JSON"):
        decode_json(b"{")
    with pytest.raises(ValueMismatch, match="not msgpack"):
        decode_msgpack(STRING, b"\xc1")
