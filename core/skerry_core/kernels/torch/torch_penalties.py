"""Penalties in Torch: step 2 of `skerry_core.sampling`, by tokens too that a device alone knows."""

from __future__ import annotations

import torch
from torch import Tensor

from skerry_core.batch import SamplingBatch, owners
from skerry_core.kernels.torch.torch_staging import to_device
from skerry_core.sampling import MAX_LOGIT


def fed_tokens(sampling: SamplingBatch, made: Tensor) -> Tensor | None:
    """Return the tokens i64[F] of the step before, which made these i64, that the samples of this
    one count in their histories, in that order; None where there are none. -1 is of a sequence that
    is over, whose row runs for nothing."""
    sources = -1 - sampling.history_ids[sampling.history_ids < 0]
    return made[to_device(sources, made.device).long()] if len(sources) else None


def penalize(adjusted: Tensor, sampling: SamplingBatch, fed: Tensor | None) -> None:
    """Apply penalties by each sample's history to logits f32[S, V], in place; `fed` is what
    `fed_tokens` returned."""
    device, is_known = adjusted.device, sampling.history_ids >= 0
    owner = owners(sampling.history_start)
    rows = to_device(owner[is_known], device)
    ids = to_device(sampling.history_ids[is_known], device).long()
    counts = to_device(sampling.history_counts[is_known], device)
    penalties = [
        to_device(sampling.samples[f"{name}_penalty"], device)
        for name in ("repetition", "frequency", "presence")
    ]
    if fed is None:
        adjusted[rows, ids] = _penalized(adjusted[rows, ids], counts, rows, *penalties)
        return
    fed_rows = to_device(owner[~is_known], device)
    nothing = torch.full((len(adjusted),), -1, dtype=torch.long, device=device)
    is_fed = ids == nothing.index_copy(0, fed_rows, fed)[rows]
    counts = counts + is_fed
    adjusted[rows, ids] = _penalized(adjusted[rows, ids], counts, rows, *penalties)
    is_new = nothing.index_add(0, rows, is_fed.long())[fed_rows] < 0
    x, once = adjusted[fed_rows, fed.clamp(min=0)], torch.ones_like(fed)
    penalized = _penalized(x, once, fed_rows, *penalties)
    adjusted[fed_rows, fed.clamp(min=0)] = torch.where(is_new, penalized, x)


def _penalized(
    x: Tensor, counts: Tensor, rows: Tensor, repetition: Tensor, frequency: Tensor,
    presence: Tensor,
) -> Tensor:  # fmt: skip
    """Return logits f32[n] of tokens of these samples' histories; penalties are by sample."""
    x = torch.where(x > 0, x / repetition[rows], x * repetition[rows])
    x = x - frequency[rows] * counts.float()
    return clean(torch.where(counts > 0, x - presence[rows], x))


def clean(logits: Tensor) -> Tensor:
    """Return logits with NaN as -inf and +inf as the largest float32."""
    return logits.nan_to_num(nan=-torch.inf, posinf=float(MAX_LOGIT), neginf=-torch.inf)
