"""Whether a node's engines really answer: they make steps, or a canary token comes back.

A process can be alive while its engine hangs; health that does not pass through the engine says
nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial

from skerry.errors import Overloaded, SkerryError
from skerry_regions.node.node import Node
from skerry_regions.node.stream import NodeStream
from skerry_regions.wire.client import ended
from skerry_regions.wire.protocol import Sampling, Submit

CANARY_SECONDS = 2.0  # for one token; an engine with work shows by its steps instead
CANARY_PROMPT = [0]


class Canary:
    """Checks one node's engines; concurrent callers share a check."""

    def __init__(self, node: Node, *, seconds: float = CANARY_SECONDS) -> None:
        self._node = node
        self._seconds = seconds
        self._steps: dict[str, int] = {}  # when last looked at
        self._check: asyncio.Task[str | None] | None = None

    async def ailment(self) -> str | None:
        """Return what is wrong, or None."""
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._ask_all())
        return await asyncio.shield(self._check)

    async def _ask_all(self) -> str | None:
        if not self._node.models:
            return "no engine runs"
        moved = self._moved()
        for beat in self._node.beats():
            if beat.model in moved or beat.model in self._node.encoders:
                continue  # an encoder holds nothing that could hang between its requests
            if (ailment := await self._ask(beat.model)) is not None:
                return f"{beat.model}: {ailment}"
        return None

    def _moved(self) -> set[str]:
        """Return models whose engines made a step since the last look."""
        before = self._steps
        self._steps = {beat.model: beat.steps for beat in self._node.beats()}
        return {model for model, steps in self._steps.items() if steps != before.get(model, steps)}

    async def _ask(self, model: str) -> str | None:
        """Have one token made."""
        submit = Submit(
            stream=1,
            request_id="canary",
            model=model,
            prompt_ids=CANARY_PROMPT,
            sampling=Sampling(max_tokens=1),
            seconds_left=self._seconds,
        )
        try:
            await ended(partial(self._node.submit, submit), NodeStream.abort)
        except Overloaded:
            return None if model in self._moved() else "full, and no step was made"
        except SkerryError as error:
            return error.message
        return None
