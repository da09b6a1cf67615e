"""Plans of large schemas and many tools, which a child makes, are remembered for their tenants."""

from __future__ import annotations

from typing import Any, cast

import pytest
from tests.edge.byte_text import ByteText

from skerry.errors import InvalidInput
from skerry_edge.output import plan as plans
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.plan import OutputPlan, OutputPlanner, plan_fields
from skerry_edge.text.desk import Desk
from skerry_edge.text.model import TextModel
from skerry_regions.process.confined import Confined

pytestmark = pytest.mark.anyio

TEXT = cast(TextModel, ByteText())


def asked(number: int, **more: Any) -> OutputAsked:
    """Twenty tools, the first of which says which."""
    tools = [
        {"type": "function", "function": {
            "name": f"tool_{each}", "description": "x" * 900,
            "parameters": {"type": "object", "properties": {f"p{number}": {"type": "string"}}}}}
        for each in range(20)
    ]  # fmt: skip
    return OutputAsked(tools=tools, **more)


class Counted:
    """A planner, and how often its child worked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, ask = 0, Confined.ask

        def counted(child: Confined, message: bytes) -> bytes:
            self.calls += 1
            return ask(child, message)

        monkeypatch.setattr(Confined, "ask", counted)
        self.desk, self._planner = Desk(), OutputPlanner()

    async def plan(self, wanted: OutputAsked, tenant: str = "a", **more: Any) -> OutputPlan:
        return await self._planner.plan(self.desk.of(tenant), TEXT, wanted, **more)

    def close(self) -> None:
        self._planner.close()
        self.desk.close()


async def test_the_same_tools_are_planned_once_for_a_tenant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch)
    try:
        for _ in range(3):
            assert await counted.plan(asked(1)) == plan_fields(TEXT.family, asked(1))
        assert counted.calls == 1
        named = asked(1, tool_choice="required")
        assert await counted.plan(named) == plan_fields(TEXT.family, named)
        strict = await counted.plan(asked(1), is_strict=True)
        assert strict == plan_fields(TEXT.family, asked(1), is_strict=True)
        assert counted.calls == 3
        await counted.plan(asked(1), "b")
        assert counted.calls == 4
        wrong = asked(1, tool_choice={"type": "function", "function": {"name": "none"}})
        for _ in range(2):
            with pytest.raises(InvalidInput, match="none"):
                await counted.plan(wrong)
    finally:
        counted.close()


async def test_of_too_many_the_oldest_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_TENANT_KEPT_BYTES", 150_000)
    counted = Counted(monkeypatch)
    try:
        for number in range(5):
            await counted.plan(asked(number))
        await counted.plan(asked(4))
        assert counted.calls == 5
        await counted.plan(asked(0))
        assert counted.calls == 6
    finally:
        counted.close()
