"""Two ways to run the same load, by what their nodes cost: split pools against hybrid nodes.

The inputs are plain: how many nodes each way had, for how long, at which price per node hour, and
how many tokens the journal counted meanwhile. A node costs the same while it waits.
"""

from __future__ import annotations

import sqlite3

from msgspec import Struct

LIKE_TOKENS = 0.02  # how much the loads' tokens may differ and still be called the same load


class Run(Struct, frozen=True, kw_only=True):
    """One way, over the time from its first request's admission to its last one's end."""

    name: str
    nodes: int
    node_hour: float  # US$
    seconds: float
    requests: int
    unfinished: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    prefill_seconds: float
    decode_seconds: float

    @property
    def node_seconds(self) -> float:
        return self.nodes * self.seconds

    @property
    def dollars(self) -> float:
        return self.node_seconds / 3600 * self.node_hour

    @property
    def per_million_output(self) -> float | None:
        """Return US$ per million output tokens, prompts included in the price."""
        return self.dollars / self.output_tokens * 1e6 if self.output_tokens else None

    @property
    def per_million_tokens(self) -> float | None:
        """Return US$ per million tokens of prompts and outputs."""
        tokens = self.prompt_tokens + self.output_tokens
        return self.dollars / tokens * 1e6 if tokens else None

    def described(self) -> str:
        """Describe it in a few lines, for people."""
        return (
            f"{self.name}: {self.requests} requests, {self.prompt_tokens} prompt tokens "
            f"({self.cached_tokens} cached), {self.output_tokens} output tokens\n"
            f"  {self.nodes} nodes for {self.seconds:.1f} s at US$ {self.node_hour:g} an hour: "
            f"US$ {self.dollars:.6f}; of their time prefill {self._share(self.prefill_seconds)}, "
            f"decode {self._share(self.decode_seconds)}\n"
            f"  US$ {_price(self.per_million_output)} per million output tokens, "
            f"{_price(self.per_million_tokens)} per million of all tokens"
        )

    def _share(self, seconds: float) -> str:
        return f"{seconds / self.node_seconds:.0%}" if self.node_seconds else "-"


def _price(dollars: float | None) -> str:
    return "-" if dollars is None else f"{dollars:.4f}"


def run_of(
    database: sqlite3.Connection, name: str, *, nodes: int, node_hour: float, since: float
) -> Run:
    """Return what a journal has of the requests since then. Raises sqlite3.Error."""
    row = database.execute(
        "SELECT COALESCE(MAX(settled) - MIN(admitted), 0), COUNT(*),"
        " COALESCE(SUM(outcome <> 'completed'), 0), COALESCE(SUM(prompt_tokens), 0),"
        " COALESCE(SUM(cached_tokens), 0), COALESCE(SUM(output_tokens), 0),"
        " COALESCE(SUM(prefill_seconds), 0), COALESCE(SUM(decode_seconds), 0)"
        " FROM usage WHERE admitted >= ? AND outcome <> 'cached'",
        (since,),
    ).fetchone()
    fields = (
        "seconds", "requests", "unfinished", "prompt_tokens", "cached_tokens", "output_tokens",
        "prefill_seconds", "decode_seconds",
    )  # fmt: skip
    figures = dict(zip(fields, row, strict=True))
    return Run(name=name, nodes=nodes, node_hour=node_hour, **figures)


def differences(first: Run, second: Run) -> list[str]:
    """Return why two runs are not the same load, if they are not."""
    found = []
    for what in ("requests", "prompt_tokens", "output_tokens"):
        one, other = getattr(first, what), getattr(second, what)
        if abs(one - other) > LIKE_TOKENS * max(one, other):
            found.append(f"{what.replace('_', ' ')}: {one} against {other}")
    return [
        *found,
        *(f"{run.name}: {run.unfinished} unfinished" for run in (first, second) if run.unfinished),
    ]
