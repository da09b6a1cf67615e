"""Schemas of a few kilobytes that took the event loop minutes: now a bounded part of a child."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.edge.loop_meter import MAX_SECONDS, METER
from tests.edge.support import Deployment, deployed

from skerry_edge.gate.quotas import AccountAllowance, Quotas
from skerry_edge.limits import Limits
from skerry_edge.output.schema import checked

CONSTANTS = {"oneOf": [{"const": number} for number in range(3000)]}  # 44 KB: 42 s before
ENUMS = {"oneOf": [{"enum": [f"{i}.{n}" for n in range(2000)]} for i in range(20)]}  # 19 s
MANY = {"oneOf": [{"enum": [i * 2000 + n for n in range(2000)]} for i in range(60)]}  # never ended
LARGE_INTEGERS = {"oneOf": [{"const": k * ((1 << 61) - 1)} for k in range(2000)]}  # one hash


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("edge"), Limits()) as deployment:
        yield deployment


@pytest.fixture(autouse=True)
def _the_loop_is_free() -> Iterator[None]:
    METER.read()
    yield
    worst, what = METER.read()
    assert worst <= MAX_SECONDS, what


def tool(schema: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"x": schema}}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


@pytest.mark.parametrize("schema", [CONSTANTS, ENUMS, MANY, LARGE_INTEGERS])
def test_one_of_with_many_constants(attacked: Deployment, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": schema}
    reply = attacked.chat(response_format=form)
    assert reply.status_code in (200, 400)
    assert attacked.chat(tools=[tool(schema)]).status_code in (200, 400)


def test_the_first_is_served_whole(attacked: Deployment) -> None:
    form = {"type": "json_schema", "json_schema": CONSTANTS}
    assert attacked.chat(response_format=form).status_code == 200
    grammar = attacked.region.submits[-1].grammar
    assert grammar is not None
    assert grammar.source.count('"const"') == 3000


def test_a_schema_that_takes_too_long_is_ended(attacked: Deployment) -> None:
    """Each of many unions looks at the same long list once more."""
    listed = {"type": "string", "enum": [f"{n}" for n in range(30_000)]}
    other = {"type": "string", "enum": [f"x{n}" for n in range(30_000)]}
    union = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}
    schema = {"$defs": {"a": listed, "b": other}, "anyOf": [union] * 4000}
    form = {"type": "json_schema", "json_schema": schema}
    reply = attacked.chat(response_format=form)
    assert reply.status_code == 400
    assert "too much time" in reply.json()["error"]["message"]
    paused = attacked.chat(response_format={"type": "json_schema", "json_schema": CONSTANTS})
    assert paused.status_code == 429  # what is large waits; the rest goes on
    assert paused.headers["retry-after"]
    assert attacked.chat().status_code == 200


def test_a_body_of_many_small_things_is_refused_before_they_are_made(attacked: Deployment) -> None:
    body = b'{"model":"m","messages":[],"tools":[{"a":[' + b"[]," * 2_700_000 + b"[]]}]}"
    attacked.edge.desk.queue._tenants.clear()  # the pause of the schema before
    reply = attacked.client.post(attacked.chat_path, content=body)
    assert reply.status_code == 400
    assert "lists and objects" in reply.json()["error"]["message"]
    code = "f([{}, {}]);" * 20_000  # brackets in strings are no lists
    reply = attacked.chat(user=code)
    assert reply.status_code == 200


def test_an_attackers_requests_count(attacked: Deployment) -> None:
    """A free 400 was what made it cheap."""
    attacked.edge.admission.hold_to(Quotas(every_tenant=AccountAllowance(requests_per_minute=2)))
    form = {"type": "json_schema", "json_schema": {"oneOf": [{}, {}]}}
    statuses = [attacked.chat(response_format=form).status_code for _ in range(4)]
    attacked.edge.admission.hold_to(Quotas())
    assert statuses == [400, 400, 429, 429]


def test_long_names_make_no_long_paths() -> None:
    """Paths of 400 KB were made for each of 10,000 schemas: 4 GB."""
    schema: dict[str, Any] = {"properties": {f"p{n}": {"type": "null"} for n in range(5000)}}
    for _ in range(50):
        schema = {"properties": {"n" * 8192: schema}}
    assert checked(schema, "s")["properties"]
