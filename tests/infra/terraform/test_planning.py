"""From configuration and state to a plan."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from skerry_terraform.kit.diagnostics import Diagnostics
from skerry_terraform.kit.planning import plan_change, validate
from skerry_terraform.kit.schema import Attr, Block, Schema, above, between, each, one_of, whole
from skerry_terraform.kit.values import NUMBER, STRING, UNKNOWN, ListOf, MapOf
from skerry_terraform.provider.pool import PoolResource

SCHEMA = Schema(
    attributes={
        "id": Attr(computed=True, keep=True),
        "name": Attr(required=True, replace=True),
        "size": Attr(NUMBER, default=1),
        "note": Attr(optional=True),
        "secret": Attr(optional=True, write_only=True),
        "status": Attr(computed=True),
        "zone": Attr(optional=True, computed=True),
        "disks": Attr(
            optional=True,
            nesting="list",
            nested={"path": Attr(required=True), "uuid": Attr(computed=True, keep=True)},
        ),
    },
    blocks={
        "rule": Block(
            attributes={"port": Attr(NUMBER, required=True), "action": Attr(default="allow")},
            nesting="set",
        )
    },
)
NOTHING = {"rule": [], "disks": None}
CREATED = {
    "id": "i", "name": "a", "size": 1, "note": None, "secret": None, "status": "ok", "zone": "z",
} | NOTHING  # fmt: skip


def config(**values: Any) -> dict[str, Any]:
    return dict.fromkeys(SCHEMA.type.attributes) | {"name": "a", "rule": []} | values


def test_what_is_created_is_known_as_far_as_it_is_configured() -> None:
    plan = plan_change(SCHEMA, config(note="n", secret="s"), None)
    assert plan.planned == CREATED | {
        "id": UNKNOWN, "status": UNKNOWN, "zone": UNKNOWN, "note": "n",
    }  # fmt: skip
    assert plan.replace == []


def test_no_change_keeps_all_that_is_computed() -> None:
    drifted = CREATED | {"status": "worse"}
    assert plan_change(SCHEMA, config(), drifted).planned == drifted


def test_a_change_makes_unknown_what_is_not_kept() -> None:
    plan = plan_change(SCHEMA, config(size=2), CREATED)
    assert plan.planned == CREATED | {"size": 2, "status": UNKNOWN, "zone": UNKNOWN}
    assert plan.replace == []


def test_a_value_that_is_taken_back_falls_to_its_default() -> None:
    plan = plan_change(SCHEMA, config(), CREATED | {"size": 5, "note": "n"})
    assert (plan.planned["size"], plan.planned["note"]) == (1, None)


@pytest.mark.parametrize("name", ["b", UNKNOWN])
def test_some_changes_force_another_object(name: Any) -> None:
    assert plan_change(SCHEMA, config(name=name), CREATED).replace == [("name",)]


def test_nested_objects_find_what_they_were_before() -> None:
    before = CREATED | {"disks": [{"path": "/a", "uuid": "1"}]}
    plan = plan_change(SCHEMA, config(disks=[{"path": "/b"}, {"path": "/c"}]), before)
    assert plan.planned["disks"] == [
        {"path": "/b", "uuid": "1"},
        {"path": "/c", "uuid": UNKNOWN},
    ]
    assert plan_change(SCHEMA, config(disks=UNKNOWN), before).planned["disks"] is UNKNOWN


def test_a_set_of_blocks_has_no_order() -> None:
    before = CREATED | {"rule": [{"port": 1, "action": "allow"}, {"port": 2, "action": "deny"}]}
    rules = [{"port": 2, "action": "deny"}, {"port": 1, "action": None}]
    assert plan_change(SCHEMA, config(rule=rules), before).planned["status"] == "ok"
    rules[1]["port"] = 3
    assert plan_change(SCHEMA, config(rule=rules), before).planned["status"] is UNKNOWN


def test_each_wrong_value_is_told_with_its_path() -> None:
    schema = Schema(
        attributes={
            "a": Attr(optional=True, check=one_of("x", "y")),
            "b": Attr(NUMBER, optional=True, check=whole(0, 3)),
            "c": Attr(ListOf(STRING), optional=True, check=each(one_of("x"), least=1)),
            "d": Attr(MapOf(NUMBER), optional=True, check=each(between(0, 1))),
        },
        blocks={"e": Block(attributes={"f": Attr(optional=True, check=one_of("x"))})},
    )
    diagnostics = Diagnostics()
    wrong = {
        "a": "z", "b": 1.5, "c": [], "d": {"k": UNKNOWN, "l": Decimal("0.12345678901234567890")},
        "e": [{"f": UNKNOWN}, {"f": "z"}],
    }  # fmt: skip
    validate(schema, wrong, diagnostics)
    assert [(each.path, each.detail) for each in diagnostics.all] == [
        (("a",), "must be one of x, y; got 'z'"),
        (("b",), "must be a whole number, 0 to 3; got 1.5"),
        (("c",), "must have at least 1 element"),
        (("d",), "has more digits than are kept; got 0.12345678901234567890"),
        (("e", 1, "f"), "must be one of x; got 'z'"),
    ]
    outside = Diagnostics()
    validate(schema, {"d": {"l": 2}, "e": []}, outside)
    assert [each.detail for each in outside.all] == ["must be 0 to 1; got 2"]
    fine = Diagnostics()
    validate(schema, {"a": UNKNOWN, "b": None, "c": [UNKNOWN], "d": {}, "e": []}, fine)
    assert fine.all == []


@pytest.mark.parametrize("name", ["queue", "ttft", "itl"])
def test_a_pools_targets_are_above_zero(name: str) -> None:
    config = dict.fromkeys(PoolResource.schema.attributes) | {f"target_{name}_seconds": 0}
    diagnostics = Diagnostics()
    validate(PoolResource.schema, config, diagnostics)
    told = [(each.path, each.detail) for each in diagnostics.all]
    assert told == [((f"target_{name}_seconds",), "must be above 0; got 0")]
    assert above(0, 3600)(0.2) is None
    assert above(0, 3600)(3601) == "must be 0 to 3600; got 3601"


def test_schemas_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="required, optional, computed"):
        Attr()
    with pytest.raises(ValueError, match="write-only"):
        Attr(computed=True, write_only=True)
    with pytest.raises(ValueError, match="replace"):
        Attr(optional=True, nested={"a": Attr(optional=True, replace=True)})
