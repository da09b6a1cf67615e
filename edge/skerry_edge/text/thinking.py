"""What a request says of how much is thought before the answer, as its model takes it.

    effort, switch, budget ──thinking──▶ variables of the chat template, a limit in tokens

Each template has variables of its own; of levels that it lacks the nearest is taken. Where it knows
none, a level is a share of the answer's tokens, which the engine holds the model to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from skerry.errors import InvalidInput
from skerry.wire import THINKING, ReasoningEffort, TextFields
from skerry_edge.families.family import is_mark
from skerry_edge.text.model import Prompt, TextModel
from skerry_edge.text.prompts import plain_chars
from skerry_regions.wire.output_marks import ReasoningLimitSpec

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
SHARES: Final = {"minimal": 0.1, "low": 0.2, "medium": 0.5, "high": 0.8, "xhigh": 0.95}
MAX_FLAG_CHARS: Final = 4096  # of all variables of a template


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """The same for one model."""

    flags: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of its chat template
    budget: int | None = None  # tokens
    share: float | None = None  # of the answer's tokens
    ignored: tuple[str, ...] = ()  # fields that change nothing, or not as they say

    def limit(
        self, text: TextModel, max_tokens: int, *, is_open: bool
    ) -> ReasoningLimitSpec | None:
        """Return what holds the engine to it in an answer of so many tokens; None where any number
        may be thought. `is_open` says that the prompt has begun a thought."""
        reasoning, budget = text.family.reasoning, self.budget
        if budget is None and self.share is not None:
            budget = int(self.share * max_tokens)
        if reasoning is None or budget is None:
            return None
        ends = (reasoning.end, text.family.calls.trigger)
        return ReasoningLimitSpec(
            max_tokens=budget,
            end_ids=tuple(text.encode(Prompt(text.family.spelled(reasoning.closing)))),
            begins=() if is_open else (_mark(text, reasoning.begin),),
            ends=tuple(_mark(text, end) for end in ends if end),
        )


def thinking(
    asked: TextFields, text: TextModel, *, is_strict: bool = False, is_raw: bool = False
) -> Thinking:
    """Return what a request says of thinking; of one that `is_raw` it changes nothing. Raises
    `InvalidInput` for variables that are too long, and where it `is_strict` for what changes
    nothing."""
    if is_raw:
        found = Thinking(
            ignored=tuple(name for name in THINKING if getattr(asked, name) is not None)
        )
    else:
        found = _thinking(asked, text)
    if found.ignored and is_strict:
        name = found.ignored[0][:64]
        raise InvalidInput(
            f"Bad input: {name}: no such field here; without options.strict it is ignored",
            param=name,
        )
    return found


def _thinking(asked: TextFields, text: TextModel) -> Thinking:
    given = asked.chat_template_kwargs or {}
    if plain_chars(given) > MAX_FLAG_CHARS:
        raise InvalidInput(
            f"Bad input: chat_template_kwargs: more than {MAX_FLAG_CHARS} characters",
            param="chat_template_kwargs",
        )
    flags = {name: value for name, value in given.items() if name in text.flags}
    ignored = [f"chat_template_kwargs.{name}" for name in given if name not in flags]
    reasoning = text.family.reasoning
    effort, budget = asked.reasoning_effort, asked.thinking_token_budget
    if reasoning is None:
        ignored += ["reasoning_effort"] * (effort not in (None, "none"))
        ignored += ["enable_thinking"] * (asked.enable_thinking is True)
        ignored += ["thinking_token_budget"] * bool(budget)
        return Thinking(flags=flags, ignored=tuple(ignored))
    is_on = asked.enable_thinking
    if is_on is None and effort is not None:
        is_on = effort != "none"
    if is_on is None and budget == 0 and reasoning.switch is not None:
        is_on = False
    chosen: dict[str, Any] = {}
    share: float | None = None
    if is_on is not None and reasoning.switch is not None:
        chosen[reasoning.switch] = is_on
    if is_on is False:
        budget = budget if reasoning.switch is None else None
        if reasoning.effort is not None and "none" in reasoning.levels:
            chosen[reasoning.effort] = "none"
        elif reasoning.switch is None:
            by_effort = asked.enable_thinking is None
            ignored.append("reasoning_effort" if by_effort else "enable_thinking")
    elif effort is not None and effort != "none":
        if reasoning.effort is None:
            share = SHARES.get(effort)
        else:
            chosen[reasoning.effort] = nearest = _nearest(effort, reasoning.levels)
            ignored += ["reasoning_effort"] * (nearest != effort)
    return Thinking(flags=chosen | flags, budget=budget, share=share, ignored=tuple(ignored))


def _nearest(effort: ReasoningEffort, levels: Sequence[str]) -> str:
    """Return the level of a template that is nearest, of two the lower one."""
    known = [level for level in EFFORTS if level in levels and level != "none"]
    place = EFFORTS.index(effort)
    return min(known, key=lambda level: abs(EFFORTS.index(level) - place), default=effort)


def _mark(text: TextModel, mark: str) -> tuple[int, ...] | str:
    """Return the tokens of a mark that begins with a control token; another one is a text."""
    spelled = text.family.spelled(mark).strip()
    return tuple(text.encode(Prompt(spelled))) if is_mark(mark) else spelled
