"""Feed-forward networks of experts in Torch: a router chooses some of them for each token.

The router multiplies in float32 whatever the weights' dtype is: with less, other experts are
chosen. An expert's rows are added in the order of experts, so a sum does not depend on the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from skerry_core.config import Activation, ExpertsConfig
from skerry_core.kernels.torch.torch_math import exp_f32
from skerry_core.kernels.torch.torch_ops import Ops


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """A layer's E experts of width I."""

    router: Tensor  # f32[E, hidden]
    router_bias: Tensor | None  # f32[E]
    gate_up: Tensor  # [E, 2 I, hidden]
    gate_up_bias: Tensor | None  # [E, 2 I]
    down: Tensor  # [E, hidden, I]
    down_bias: Tensor | None  # [E, hidden]


def run_experts(
    config: ExpertsConfig, weights: ExpertWeights, x: Tensor, ops: Ops, activation: Activation
) -> Tensor:
    """Return the weighted sum of each token's experts, [T, hidden] of normed rows [T, hidden]."""
    scores = ops.linear(x.float(), weights.router, weights.router_bias)
    chosen, shares = _choose(config, scores)
    out = torch.zeros_like(x)
    for expert in chosen.unique().tolist():
        is_mine = (chosen == expert).any(1)
        rows = torch.ones_like(is_mine) if ops.fixes_shapes else is_mine
        bias = None if weights.gate_up_bias is None else weights.gate_up_bias[expert]
        wide = ops.gated(ops.linear(x[rows], weights.gate_up[expert], bias), activation)
        bias = None if weights.down_bias is None else weights.down_bias[expert]
        share = shares.where(chosen == expert, 0).sum(1)[rows, None]
        added = out[rows] + share.to(x.dtype) * ops.linear(wide, weights.down[expert], bias)
        out[rows] = torch.where(is_mine[rows, None], added, out[rows])
    return out


def _choose(config: ExpertsConfig, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return each token's experts i64[T, k], and their shares f32[T, k], of scores f32[T, E]."""
    ordered, chosen = scores.sort(dim=1, descending=True, stable=True)
    largest, ordered = ordered[:, :1], ordered[:, : config.used]
    of_chosen = exp_f32(ordered - largest)
    total = of_chosen if config.weighs_chosen else exp_f32(scores - largest)
    return chosen[:, : config.used], of_chosen / total.sum(1, keepdim=True)
