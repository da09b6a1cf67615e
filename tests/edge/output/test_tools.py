"""Tools: every form of asking for them, and what is refused of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.edge.output.two_tools import FLAT, NESTED, plan

from skerry.errors import InvalidInput


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": NESTED},
        {"tools": FLAT},
        {"tools": [{"type": "function", **each} for each in FLAT]},
        {"functions": FLAT},
        {"tools": NESTED, "tool_choice": "auto"},
    ],
)
def test_forms_of_tools(fields: dict[str, Any]) -> None:
    box = plan(**fields).box
    assert box is not None
    assert [tool.name for tool in box.tools] == ["weather", "add"]
    assert box.choice == "auto"
    assert box.is_parallel


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        {"tool_choice": {"type": "function", "name": "add"}},
        {"function_call": {"name": "add"}},
    ],
)
def test_forms_of_naming_a_tool(fields: dict[str, Any]) -> None:
    box = plan(tools=NESTED, **fields).box
    assert box is not None
    assert [tool.name for tool in box.tools] == ["add"]
    assert (box.choice, box.is_parallel) == ("required", False)


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("is_nested", [True, False])
def test_some_tools_are_allowed_and_all_are_shown(mode: str, is_nested: bool) -> None:
    """So that the prompt's beginning stays the same, and is found in the cache."""
    named = [{"type": "function", "function": {"name": "add"}}]
    allowed: dict[str, Any] = {"mode": mode, "tools": named}
    if not is_nested:
        allowed["tools"] = [{"type": "function", "name": "add"}]
    inside = {"allowed_tools": allowed} if is_nested else allowed
    whole = plan(tools=NESTED, tool_choice={"type": "allowed_tools", **inside})
    box = whole.box
    assert box is not None
    assert [tool.name for tool in box.tools] == ["add"]
    assert [tool.name for tool in box.shown] == ["weather", "add"]
    assert (box.choice, box.is_parallel) == (mode, True)
    assert whole.grammar is not None
    assert "weather" not in whole.grammar.source


@pytest.mark.parametrize(
    "allowed",
    [
        {},
        {"mode": "none", "tools": [{"type": "function", "name": "add"}]},
        {"mode": "auto", "tools": []},
        {"mode": "auto", "tools": [{"type": "mcp", "server_label": "x"}]},
        {"mode": "auto", "tools": [{"type": "function", "name": "divide"}]},
        {"allowed_tools": [{"type": "function", "name": "add"}]},
    ],
)
def test_tools_that_cannot_be_allowed(allowed: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        plan(tools=NESTED, tool_choice={"type": "allowed_tools", **allowed})
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None, "tool_choice": "none"}, {}])
def test_no_tools(fields: dict[str, Any]) -> None:
    assert plan(**fields).box is None
    assert plan(**fields).grammar is None
