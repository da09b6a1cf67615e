"""What the output of a request may be: free text, a format, calls of tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import msgspec

from skerry.errors import InvalidInput, Unavailable
from skerry.wire import TextFields
from skerry_edge.families.family import Family
from skerry_edge.families.recognition import Thought
from skerry_edge.output.asked import OutputAsked
from skerry_edge.output.format import OutputFormat, output_format
from skerry_edge.output.one_of import Schema
from skerry_edge.output.tool_grammars import framed, tool_grammar
from skerry_edge.output.tools import Toolbox, toolbox
from skerry_edge.output.unenforced import Unenforced
from skerry_edge.text.desk import TenantDesk
from skerry_edge.text.model import TextModel
from skerry_edge.text.tenant_memory import TenantMemory
from skerry_regions.process.confined import ChildUnavailable, Confined, Exhausted
from skerry_regions.wire.protocol import GrammarSpec

VALUE_WEIGHT: Final = 16  # of a value; its text weighs a unit a character
INLINE_WEIGHT: Final = 16 << 10  # looked at on the event loop: a thousand values, some milliseconds
MAX_KEPT_BYTES: Final = 32 << 20  # of plans that are remembered, of all tenants …
MAX_TENANT_KEPT_BYTES: Final = 2 << 20  # … and of each; those of twenty tools take 40,000
MAX_WEIGHT: Final = 2 << 20  # of all schemas and tools of a request; ten times MAX_GRAMMAR


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """How an output is described, held to that, and read."""

    family: Family
    box: Toolbox | None
    wanted: OutputFormat | None
    grammar: GrammarSpec | None  # of what follows a thought
    unenforced: tuple[str, ...] = ()  # paths of what the schemas say and the grammar does not

    @property
    def has_calls(self) -> bool:
        """Return whether there may be calls in the output."""
        return self.box is not None and self.box.choice != "none"

    @property
    def called(self) -> dict[str, Schema] | None:
        """Return the parameters of the tools that may be called, by name; None where none may."""
        if self.box is None or self.box.choice == "none":
            return None
        return {tool.name: tool.parameters for tool in self.box.tools}

    def grammar_after(self, thought: Thought) -> GrammarSpec | None:
        """Return what the output may be behind a prompt that ends so. Raises `InvalidInput`."""
        return framed(self.family, thought, self.grammar, has_calls=self.has_calls)


class OutputPlanner:
    """Plans outputs: small ones at once, others in a child that may be killed, tenants by turn.

    An agent sends the same tools with each of its turns: what the child answered is remembered.
    """

    def __init__(self) -> None:
        self._child = Confined("skerry_edge.output.child")
        self._answers: TenantMemory[bytes] = TenantMemory(
            max_bytes=MAX_KEPT_BYTES, max_tenant_bytes=MAX_TENANT_KEPT_BYTES
        )

    async def plan(
        self,
        desk: TenantDesk,
        text: TextModel,
        request: TextFields | OutputAsked,
        *,
        is_strict: bool = False,
    ) -> OutputPlan:
        """Return the plan of a request's output. With `is_strict` tools are held to all that they
        say.

        Raises `InvalidInput`, naming the field, for what cannot be held, and what `TenantDesk.run`
        raises.
        """
        family = text.family
        asked = {name: getattr(request, name) for name in OutputAsked.__struct_fields__}
        if weighs_at_most(asked, INLINE_WEIGHT):
            return plan_fields(family, OutputAsked(**asked), is_strict=is_strict)
        try:
            return await desk.run(lambda: self._plan(desk.tenant, family, asked, is_strict))
        except Exhausted:
            raise InvalidInput(
                "Bad input: the request's schemas and tools take too much time to check"
            ) from None

    def close(self) -> None:
        """End the child."""
        self._child.close()

    def _plan(
        self, tenant: str, family: Family, asked: dict[str, Any], is_strict: bool
    ) -> OutputPlan:
        """Have the child plan it, or recall what it did. On a thread; raises `Exhausted` too."""
        if not weighs_at_most(asked, MAX_WEIGHT):
            raise InvalidInput(
                f"Bad input: schemas and tools of more than {MAX_WEIGHT} units (a character is "
                f"one, each value {VALUE_WEIGHT} more)"
            )
        try:
            message = json.dumps([msgspec.to_builtins(family), asked, is_strict]).encode()
        except RecursionError:
            raise InvalidInput("Bad input: schemas or tools are nested too deeply") from None
        name = blake2b(message, digest_size=16).digest()
        found = self._answers.recall(tenant, name)
        if found is None:
            try:
                found = self._child.ask(message)
            except ChildUnavailable as error:
                raise Unavailable(f"Large schemas cannot be checked now: {error}") from None
            self._answers.remember(tenant, name, found, len(found))
        answer = json.loads(found)
        if (refusal := answer.get("refusal")) is not None:
            message, param = refusal
            raise InvalidInput(message, param=param)
        return msgspec.convert(answer["plan"], OutputPlan)


def plan_fields(family: Family, asked: OutputAsked, *, is_strict: bool = False) -> OutputPlan:
    """Raises `InvalidInput`, naming the field, for what cannot be held."""
    unenforced = Unenforced()
    wanted = output_format(asked, None if is_strict else unenforced)
    box = toolbox(asked, None if is_strict else unenforced)
    if box is not None:
        grammar = tool_grammar(family, box, wanted, None if is_strict else unenforced)
    else:
        grammar = None if wanted is None else wanted.grammar
    return OutputPlan(
        family=family, box=box, wanted=wanted, grammar=grammar, unenforced=unenforced.named()
    )


def weighs_at_most(value: object, limit: int) -> bool:
    """Return whether plain data is no larger than that, after work that the limit bounds."""
    limit -= VALUE_WEIGHT
    waiting = [value]
    while waiting and limit >= 0:
        match waiting.pop():
            case str() as text:
                limit -= len(text)
            case dict() as found:
                limit -= VALUE_WEIGHT * len(found)
                if limit >= 0:
                    limit -= sum(map(len, found))
                    waiting += found.values()
            case list() as found:
                limit -= VALUE_WEIGHT * len(found)
                if limit >= 0:
                    waiting += found
            case _:
                pass
    return limit >= 0
