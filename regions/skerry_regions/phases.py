"""What a node did for a stream, phase by phase: sent once, in the stream's last event.

    ├ grammar ┤├ receive ┤├ queue ┤├ prefill ┤├──────── decode ────────┤
                                   ├──── send ────┤

Seconds since the stream reached the node, on that node's monotonic clock: an edge places them on
its own, and no two clocks need to agree. Numbers and names of phases only, never text.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
PhaseName = Literal["grammar", "receive", "queue", "prefill", "send", "decode"]


class Phase(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One phase. Figures that a phase has none of are zero, and stay out of the frame."""

    name: PhaseName
    start: Seconds
    seconds: Seconds
    tokens: Count = 0  # computed by a prefill, made by a decode
    cached_tokens: Count = 0  # that the prefill did not have to compute
    steps: Count = 0  # of the engine: chunks of a prefill, or steps of a decode
    preemptions: Count = 0  # times that the stream lost its place in the engine
    blocks: Count = 0  # of KV, sent or received
    bytes: Count = 0  # of those
    lost: bool = False  # the KV did not come

    @property
    def end(self) -> float:
        return self.start + self.seconds


class Timeline(Struct, frozen=True, kw_only=True):
    """A stream's phases in order of their start; those that did not happen are left out."""

    seconds: Seconds  # from the stream's arrival to the event that carries this
    phases: Annotated[tuple[Phase, ...], Meta(max_length=8)] = ()

    def phase(self, name: PhaseName) -> Phase | None:
        return next((phase for phase in self.phases if phase.name == name), None)
