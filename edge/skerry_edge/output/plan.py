"""What the output of a request may be: free text, a format, calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from skerry_edge.output.format import FormatRequest, OutputFormat, output_format
from skerry_edge.output.tools import Family, Toolbox, ToolRequest, family_of, tool_grammar, toolbox
from skerry_edge.text.model import TextModel
from skerry_regions.wire.protocol import GrammarSpec


class OutputRequest(FormatRequest, ToolRequest, Protocol):
    """The fields that both dialects' requests share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPlan:
    """How an output is asked for, held to it, and read."""

    family: Family
    box: Toolbox | None
    wanted: OutputFormat | None
    grammar: GrammarSpec | None

    @property
    def parsed(self) -> Family | None:
        """How calls in the output are written, where there may be any."""
        return self.family if self.box is not None and self.box.choice != "none" else None


def plan_output(text: TextModel, request: OutputRequest) -> OutputPlan:
    """Raises `InvalidInput`, naming the field, for what cannot be held."""
    wanted = output_format(request)
    family = family_of(text.chat_template, text.control_id)
    box = toolbox(request)
    if box is not None:
        grammar = tool_grammar(family, box, wanted)
    else:
        grammar = None if wanted is None else wanted.grammar
    return OutputPlan(family=family, box=box, wanted=wanted, grammar=grammar)
