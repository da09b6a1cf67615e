"""What the engine's figures should reach, and whether they do: the last table of `bench.engine`.

Bounds are figures of their own: the rate that was measured as a share of what the machine would
allow if nothing took time but reading (weights and KV, at the bandwidth that a set as large had in
the same round), or nothing but 8-bit products (of the linear layers, at the peak).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

from bench.measuring import stats


@dataclass(frozen=True)
class Target:
    """A cell's figure, ours by `peer`'s or ours alone, and what it should be at least or most."""

    cell: str
    wanted: float
    peer: str | None = None
    at_most: bool = False

    def samples(self, cell: stats.Cell, ours: str) -> list[float]:
        return cell.ratios(ours, self.peer) if self.peer else cell.samples[ours]

    def falls_short(self, value: float) -> float:
        """Share of the wanted figure that is missing; 0 when it is met."""
        missing = value - self.wanted if self.at_most else self.wanted - value
        return max(0.0, missing / self.wanted)


@dataclass(frozen=True)
class Model:
    """What a step of the model costs, as its runner tells."""

    weight_bytes: float  # read by every step
    kv_bytes: float  # per token of context
    products: float  # of the linear layers per token, logits apart
    expert_bytes: float = 0.0  # of the weights, of which only those of chosen experts are read
    experts: int = 0


def step_bytes(model: Model, context: int, busy_experts: float = 0.0) -> float:
    """Bytes that a step reads of a stream alone; of the experts those of `busy_experts` a layer."""
    unused = 1 - busy_experts / model.experts if model.experts else 0.0
    return model.weight_bytes - unused * model.expert_bytes + model.kv_bytes * context


def of_bandwidth(model: Model, gigabytes: float, tokens_per_second: float, context: int) -> float:
    """Percent of the bound that reading sets to a stream alone."""
    return step_bytes(model, context) * tokens_per_second / gigabytes / 1e7


def of_int8(model: Model, products: float, tokens_per_second: float) -> float:
    """Percent of 1e9 products per second that a prefill makes in its linear layers."""
    return model.products * tokens_per_second / products / 1e7


def table(targets: tuple[Target, ...], cells: Mapping[str, stats.Cell], ours: str) -> Table:
    """Every target whose figure was measured."""
    result = Table(title="wanted and measured, medians")
    for name in ("figure", "wanted", "measured [min..max]", ""):
        result.add_column(name, justify="left" if name == "figure" else "right")
    for target in targets:
        if target.cell not in cells:
            continue
        cell = cells[target.cell]
        samples = target.samples(cell, ours)
        median = statistics.median(samples)
        unit = f"times {target.peer}" if target.peer else cell.unit
        short = target.falls_short(median)
        result.add_row(
            f"{target.cell}, {unit}",
            f"{'≤' if target.at_most else '≥'} {target.wanted:g}",
            f"{median:.2f} [{min(samples):.2f}..{max(samples):.2f}]",
            f"short by {short:.0%}" if short else "met",
        )
    return result
