"""Between messages and what authors see: values, private data, and exceptions as diagnostics."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

import msgspec

from skerry_terraform.kit.diagnostics import Diagnostics, ProviderError
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

log = logging.getLogger(__name__)


@contextlib.contextmanager
def told(diagnostics: Diagnostics) -> Generator[None]:
    """Turn what goes wrong into diagnostics: none of it reaches Terraform as a broken call."""
    try:
        yield
    except ProviderError as error:
        diagnostics.add(error)
    except Exception as error:
        log.exception("a bug in the provider")
        diagnostics.error(
            "A bug in the provider",
            f"{type(error).__name__}: {error}\nPlease report it, with what TF_LOG=info shows.",
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
