"""Requests of an engine as plain values, from which sequences are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skerry_core.device_pages import DevicePages
from skerry_core.engine.sequence import Sequence
from skerry_core.reasoning_budget import Mark, ReasoningBudget
from skerry_core.request import KVBlock, PriorityName

if TYPE_CHECKING:
    from skerry_core.grammar.matcher import Matcher


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """A `Sampling`; greedy unless it says otherwise."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0
    choice: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    max_tokens: int = 256
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """A `ReasoningLimit`."""

    max_tokens: int
    end_ids: tuple[int, ...]
    begins: tuple[Mark, ...] = ()
    ends: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An engine's `Request`, and what else its sequence is made of."""

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    output_ids: tuple[int, ...] = ()
    tenant: str = ""
    cache_key: bytes = b""
    priority: PriorityName = "interactive"
    reject_if_busy: bool = False
    pins: tuple[tuple[int, float], ...] = ()
    prompt_logprobs: int | None = None
    kv: tuple[KVBlock, ...] = ()
    exports_kv: bool = False
    export_pages: Callable[[], DevicePages | None] | None = None
    private_blocks: bool = False
    matcher: Matcher | None = None
    reasoning: Reasoning | None = None
    token_texts: tuple[bytes, ...] = ()  # of the vocabulary, for marks that are texts

    def sequence(self) -> Sequence:
        """Make a new sequence of this request."""
        limit, budget = self.reasoning, None
        if limit is not None:
            budget = ReasoningBudget(limit, self.output_ids, self.token_texts)
        return Sequence(
            self.id,
            self,
            matcher=self.matcher,
            budget=budget,
            kv=self.kv,
            exports_kv=self.exports_kv,
            export_pages=self.export_pages,
            private_blocks=self.private_blocks,
        )
