"""Between messages and what authors see: values and private data."""

from __future__ import annotations

import msgspec

from skerry_terraform.kit.messages import Message, message
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.values import (
    ObjectOf,
    Value,
    decode_json,
    decode_msgpack,
    encode_msgpack,
    from_raw,
)


def decoded(type_: ObjectOf, value: Message) -> Value:
    """Return a message's dynamic value; None for null. Raises ValueMismatch."""
    if value.HasField("msgpack"):
        return decode_msgpack(type_, value.msgpack)
    return from_raw(type_, decode_json(value.json)) if value.HasField("json") else None


def encoded(type_: ObjectOf, value: Value) -> Message:
    """Raises ValueMismatch."""
    return message("DynamicValue", msgpack=encode_msgpack(type_, value))


def private_of(data: bytes) -> Object:
    private: Object = msgspec.json.decode(data) if data else {}
    return private


def private_bytes(private: Object) -> bytes:
    return msgspec.json.encode(private) if private else b""
