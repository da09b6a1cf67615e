"""How fast nodes and links are.

The time of an engine step is linear in what the step computes:

    seconds = base + per_token·new + per_pair·attended + per_stream·streams + per_context·context

with `new` prompt tokens, `attended` pairs (new token, token it looks at: attention's quadratic
term), `streams` that decode one token each, and `context` tokens that those streams look at. Sums
over several steps obey the same line, so a node reports sums (`StepSample`), and one small
regression explains prefill nodes, decode nodes and nodes that do both.

`NodeSpeed` and `LinkSpeed` are immutable and travel in a `View`; the learners of
`region/speed_learning.py` make new ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Amount = Annotated[float, Meta(ge=0.0, le=1e18)]
"""Bounds bind whoever decodes: what a node reports is made on another machine."""


COEFFICIENTS = ("base", "per_token", "per_pair", "per_stream", "per_context")
LEAST_CHUNK = 16  # prompt tokens of a step beside streams


def attended_pairs(new_tokens: int, cached_tokens: int) -> float:
    """Return pairs (query, key) of causal attention for `new_tokens` after `cached_tokens`."""
    return new_tokens * (cached_tokens + (new_tokens + 1) / 2)


class NodeSpeed(Struct, frozen=True, kw_only=True):
    """Coefficients of a node's step time, in seconds per unit."""

    base: float  # seconds per step
    per_token: float  # seconds per new prompt token
    per_pair: float  # seconds per attended pair
    per_stream: float  # seconds per decoding stream and step
    per_context: float  # seconds per token of decoding context and step
    chunk_tokens: int = 512  # prompt tokens that fit in one step
    gap_seconds: float = 0.03  # that a step may last for a prompt while streams wait for it

    def step_seconds(self, streams: int, context: float) -> float:
        """Return seconds of a step that only decodes: `streams` streams, `context`
        tokens in all."""
        return self.base + self.per_stream * streams + self.per_context * context

    def room_seconds(self, streams: int, context: float) -> float:
        """Return what a step may take longer for prompts while streams wait for it: the rule of the
        engine's scheduler (`skerry_core.engine.step_price.StepPrice.chunk`)."""
        pace = self.step_seconds(streams, context)
        return max(self.gap_seconds - pace, pace)

    def work_seconds(
        self, tokens: float, pairs: float, *, streams: int = 0, context: float = 0.0
    ) -> float:
        """Return seconds of prefill of `tokens` and `pairs` while `streams` decode in the same
        steps."""
        prompts = self.per_token * tokens + self.per_pair * pairs
        steps = math.ceil(tokens / self.chunk_tokens)
        if streams:
            by_time = prompts / self.room_seconds(streams, context)
            steps = max(steps, math.ceil(min(by_time, tokens / LEAST_CHUNK)))
        return steps * self.step_seconds(streams, context) + prompts

    def prefill_seconds(
        self, new_tokens: int, cached_tokens: int, *, streams: int = 0, context: float = 0.0
    ) -> float:
        """Return seconds of one prompt: `new_tokens` computed after `cached_tokens`."""
        pairs = attended_pairs(new_tokens, cached_tokens)
        return self.work_seconds(new_tokens, pairs, streams=streams, context=context)

    def prompt_seconds(self, new_tokens: int, cached_tokens: int) -> float:
        """Return what a prompt adds to the steps that it is computed in."""
        return self.per_token * new_tokens + self.per_pair * attended_pairs(
            new_tokens, cached_tokens
        )

    def scaled(self, factor: float) -> NodeSpeed:
        """Return the same curve, `factor` times slower."""
        return self.with_coefficients(each * factor for each in self.coefficients)

    @property
    def coefficients(self) -> tuple[float, float, float, float, float]:
        """Return them in the order of `StepSample.features`."""
        return self.base, self.per_token, self.per_pair, self.per_stream, self.per_context

    def with_coefficients(self, values: Iterable[float]) -> NodeSpeed:
        """Return the same with other coefficients, in that order."""
        return replace(self, **dict(zip(COEFFICIENTS, values, strict=True)))


class LinkSpeed(Struct, frozen=True, kw_only=True):
    """A path between two places."""

    rtt: float  # seconds
    bandwidth: float  # bytes per second

    def transfer_seconds(self, num_bytes: float) -> float:
        """Return seconds from the request to the last byte."""
        return self.rtt + num_bytes / self.bandwidth


class StepSample(Struct, frozen=True, kw_only=True):
    """Sums over one or more engine steps of one node, as measured there."""

    steps: Count
    seconds: Amount
    new_tokens: Count = 0
    attended: Amount = 0.0  # pairs
    streams: Count = 0  # sum over steps of the streams that decoded
    context: Amount = 0.0  # sum over steps of the tokens they looked at

    def features(self) -> tuple[float, float, float, float, float]:
        return (self.steps, self.new_tokens, self.attended, self.streams, self.context)
