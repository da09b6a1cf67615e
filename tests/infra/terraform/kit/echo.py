"""A provider of objects in memory, with every kind of value, that can be told to fail."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

from skerry_terraform.kit.diagnostics import Diagnostics, ProviderError
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.provider import (
    ArgumentError,
    CallContext,
    DataSource,
    Ephemeral,
    Function,
    Opened,
    Provider,
    Resource,
)
from skerry_terraform.kit.schema import Attr, Block, Schema, one_of
from skerry_terraform.kit.values import BOOL, NUMBER, STRING, ListOf, MapOf, SetOf


@dataclass
class Store:
    """What exists remotely."""

    objects: dict[str, Object] = field(default_factory=dict[str, Object])
    secrets: list[str] = field(default_factory=list[str])  # that were written
    opened: list[str] = field(default_factory=list[str])
    is_released: bool = False
    is_away: bool = False  # nothing can be closed


Ctx = CallContext[Store]
FAILURES = ("before", "after", "bug", "unknown", "type")


class Echo(Resource[Store]):
    name = "echo"
    schema = Schema(
        version=2,
        attributes={
            "id": Attr(computed=True, keep=True),
            "text": Attr(optional=True),
            "number": Attr(NUMBER, optional=True),
            "flag": Attr(BOOL, default=False),
            "names": Attr(ListOf(STRING), optional=True),
            "tags": Attr(SetOf(STRING), optional=True),
            "labels": Attr(MapOf(NUMBER), optional=True),
            "secret_wo": Attr(optional=True, write_only=True, sensitive=True),
            "fails": Attr(optional=True, check=one_of(*FAILURES)),
            "point": Attr(
                optional=True,
                nested={"x": Attr(NUMBER, required=True), "kind": Attr(computed=True)},
            ),
        },
        blocks={
            "part": Block(attributes={"name": Attr(required=True), "made": Attr(computed=True)})
        },
    )

    def validate(self, config: Object, diagnostics: Diagnostics) -> None:
        if config["text"] == "doubtful":
            diagnostics.warning("Doubtful", "is it?", ("text",))

    def create(self, ctx: Ctx) -> Object:
        return self._write(ctx, str(uuid.uuid4()))

    def update(self, ctx: Ctx) -> Object:
        return self._write(ctx, ctx.prior["id"])

    def _write(self, ctx: Ctx, id: str) -> Object:
        if ctx.planned["fails"] == "before":
            raise ProviderError("Refused", "before it existed", ("fails",))
        if ctx.config["secret_wo"] is not None:
            ctx.client.secrets.append(ctx.config["secret_wo"])
        state: Object = ctx.planned | {"id": id, "secret_wo": ctx.config["secret_wo"]}
        if state["point"] is not None:
            state["point"] = state["point"] | {"kind": "flat"}
        state["part"] = [part | {"made": "yes"} for part in state["part"]]
        ctx.client.objects[id] = state
        ctx.private["writes"] = ctx.private.get("writes", 0) + 1
        ctx.save(state)
        match state["fails"]:
            case "after":
                raise ProviderError("Failed", "after it existed")
            case "bug":
                raise ZeroDivisionError("a slip")
            case "unknown":
                return ctx.planned
            case "type":
                return state | {"number": "many"}
            case _:
                return state

    def read(self, ctx: Ctx) -> Object | None:
        return ctx.client.objects.get(ctx.prior["id"])

    def delete(self, ctx: Ctx) -> None:
        if ctx.prior["text"] == "sticky":
            raise ProviderError("It stays")
        ctx.client.objects.pop(ctx.prior["id"], None)

    def import_(self, ctx: Ctx, id: str) -> Object:
        return ctx.client.objects[id]

    def upgrade(self, version: int, state: Object) -> Object:
        """Before version 2 the text was called `title`."""
        return state | {"text": state["title"]}


class EchoData(DataSource[Store]):
    name = "echo"
    schema = Schema(attributes={"text": Attr(required=True), "length": Attr(NUMBER, computed=True)})

    def read(self, ctx: Ctx) -> Object:
        return ctx.config | {"length": len(ctx.config["text"])}


class Key(Ephemeral[Store]):
    name = "key"
    schema = Schema(attributes={"value": Attr(computed=True, sensitive=True)})

    def open(self, ctx: Ctx) -> Opened:
        ctx.client.opened.append("key-0")
        return Opened(result={"value": "v"}, private={"key": "key-0"})

    def close(self, ctx: Ctx) -> None:
        if ctx.client.is_away:
            raise ProviderError("Away", f"{ctx.private['key']} stays")
        ctx.client.opened.remove(ctx.private["key"])


def half(value: int) -> float:
    if value < 0:
        raise ArgumentError("must not be negative", 0)
    return value / 2


def echo_provider(store: Store) -> Provider[Store]:
    def configure(config: Object, stop: threading.Event) -> Store:
        if config["broken"]:
            raise ProviderError("Broken", "as configured", ("broken",))
        return store

    def release(client: Store) -> None:
        client.is_released = True

    schema = Schema(attributes={"broken": Attr(BOOL, optional=True)})
    arguments: Any = (("value", NUMBER, "To be halved."),)
    return Provider(
        name="skerry",
        schema=schema,
        configure=configure,
        release=release,
        resources=[Echo()],
        data_sources=[EchoData()],
        ephemerals=[Key()],
        functions=[
            Function(name="half", parameters=arguments, returns=NUMBER, call=half, doc="Half.")
        ],
    )
