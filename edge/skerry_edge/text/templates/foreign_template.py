"""Chat templates that come with unverified files: rendered where they may be killed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from skerry_edge.text.templates.filters import TemplateRefusal
from skerry_edge.text.templates.sandbox import TemplateLimit
from skerry_edge.text.templates.template import TemplateError
from skerry_regions.process.confined import ChildUnavailable, Confined, Exhausted

ARGUMENT_CHARS: Final = 64 << 10  # of one argument of a process, which the system bounds


class ForeignTemplate:
    """As a `ChatTemplate`, in a child of its own; `close` ends it. From any thread."""

    def __init__(self, source: str, *, tokens: Mapping[str, str]) -> None:
        """Raises `TemplateError` as a `ChatTemplate` does. Blocks while the child starts."""
        whole = json.dumps([source, tokens])
        pieces = range(0, len(whole), ARGUMENT_CHARS)
        self._child = Confined(
            "skerry_edge.text.templates.template_child",
            *(whole[start : start + ARGUMENT_CHARS] for start in pieces),
        )
        try:
            self._child.start()
            self.flags = frozenset[str](json.loads(self._child.ask(b"null")))
        except (ChildUnavailable, Exhausted) as error:
            raise TemplateError(str(error)) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        flags: Mapping[str, Any] | None = None,
    ) -> str:
        """Lay out a conversation. Blocks.

        Raises `TemplateRefusal` and `TemplateLimit`; ValueError where its code fails on messages
        of a form it does not expect.
        """
        asked = {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "flags": flags,
        }
        try:
            answer = self._child.ask(json.dumps(asked).encode())
        except Exhausted:
            raise TemplateLimit("too much time or memory") from None
        except ChildUnavailable as error:
            raise ValueError(str(error)) from None
        kind, text = json.loads(answer)
        match kind:
            case "text":
                return str(text)
            case "refusal":
                raise TemplateRefusal(text)
            case "limit":
                raise TemplateLimit(text)
            case _:
                raise ValueError(text)

    def close(self) -> None:
        """End the child; a later rendering starts another."""
        self._child.close()
