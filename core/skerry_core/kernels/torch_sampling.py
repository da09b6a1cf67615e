"""Sampling in Torch, on the device that holds the logits; `skerry_core.sampling` is its meaning.

The counter-based uniforms are drawn on the host, where they are a handful of integers; everything
that touches the vocabulary stays on the device, and one copy brings the chosen tokens back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from skerry_core.batch import SamplingBatch, StepResult
from skerry_core.kernels.reference_math import uniform
from skerry_core.sampling import GREEDY_TEMPERATURE, WEIGHT_ONE


def sample(logits: Tensor, sampling: SamplingBatch) -> StepResult:
    """Choose a token for each of the S rows of `logits` f32[S, V], which is left unchanged."""
    adjusted = _adjusted(logits, sampling)
    chosen = adjusted.argmax(-1)
    drawing = np.flatnonzero((sampling.temperature >= GREEDY_TEMPERATURE) & (sampling.targets < 0))
    if len(drawing):
        rows = _to(drawing, logits.device)
        chosen[rows] = _draw(adjusted[rows], sampling, drawing)
    targets = _to(sampling.targets, logits.device).long()
    chosen = torch.where(targets >= 0, targets, chosen)
    return _result(logits, chosen, sampling)


def _adjusted(logits: Tensor, sampling: SamplingBatch) -> Tensor:
    """Penalties, bias and grammar mask, in that order."""
    adjusted = logits.clone()
    device = logits.device
    if len(sampling.history_ids):
        _penalize(adjusted, sampling)
    if len(sampling.bias_ids):
        rows = _owners(sampling.bias_start, device)
        ids = _to(sampling.bias_ids, device).long()
        adjusted.index_put_((rows, ids), _to(sampling.bias_values, device), accumulate=True)
    if sampling.allowed is not None:
        adjusted.masked_fill_(~_unpacked(sampling.allowed, logits.shape[1], device), -torch.inf)
    return adjusted


def _penalize(adjusted: Tensor, sampling: SamplingBatch) -> None:
    device = adjusted.device
    owners = _owners(sampling.history_start, device)
    ids = _to(sampling.history_ids, device).long()
    counts = _to(sampling.history_counts, device).float()
    repetition = _to(sampling.repetition_penalty, device)[owners]
    frequency = _to(sampling.frequency_penalty, device)[owners]
    presence = _to(sampling.presence_penalty, device)[owners]
    values = adjusted[owners, ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    adjusted[owners, ids] = values - counts * frequency - (counts > 0) * presence


def _draw(adjusted: Tensor, sampling: SamplingBatch, rows: np.ndarray[Any, Any]) -> Tensor:
    """Inverse CDF over (logit descending, id ascending) of what the filters leave; i64[rows]."""
    device = adjusted.device
    temperature = _to(sampling.temperature[rows], device)[:, None]
    ordered, ids = adjusted.sort(dim=-1, descending=True, stable=True)
    x = (ordered - ordered[:, :1]) / temperature
    rank = torch.arange(x.shape[1], device=device)
    min_p = _to(sampling.min_p[rows], device)[:, None]
    top_k = _to(sampling.top_k[rows], device)[:, None]
    kept = ((x >= min_p.log()) | (rank == 0)) & ((top_k <= 0) | (rank < top_k))
    # Fixed point, as in `sampling.weights`: integer sums have no order.
    weights = (x.double().exp() * WEIGHT_ONE).round().long() * kept
    running = weights.cumsum(-1)
    top_p = _to(sampling.top_p[rows], device).double()[:, None]
    inside = (running - weights) < top_p * running[:, -1:].double()
    running = (weights * (inside | (rank == 0))).cumsum(-1)
    total = running[:, -1:]
    uniforms = [
        uniform(int(sampling.seeds[s]), int(sampling.positions[s]), int(sampling.choices[s]))
        for s in rows
    ]
    u = torch.tensor(uniforms, dtype=torch.float64, device=device)[:, None]
    drawn = torch.minimum((u * total).long(), total - 1)
    picked = torch.searchsorted(running, drawn, right=True)
    return ids.gather(1, picked)[:, 0]


def _result(logits: Tensor, chosen: Tensor, sampling: SamplingBatch) -> StepResult:
    """Bring chosen tokens and the log-probabilities that were asked for to the host."""
    wanted = int(sampling.num_logprobs.max(initial=-1))
    count = len(chosen)
    top_ids = np.full((count, max(wanted, 0)), -1, np.int32)
    top_logprobs = np.full((count, max(wanted, 0)), -np.inf, np.float32)
    logprobs = np.zeros(count, np.float32)
    if wanted >= 0:
        raw = logits.double().log_softmax(-1)
        logprobs[:] = raw.gather(1, chosen[:, None])[:, 0].float().cpu().numpy()
        # A stable sort breaks ties by ascending id, as the contract says; topk does not.
        values, ids = raw.sort(dim=-1, descending=True, stable=True)
        top_ids[:] = ids[:, :wanted].int().cpu().numpy()
        top_logprobs[:] = values[:, :wanted].float().cpu().numpy()
        unasked = np.arange(wanted)[None, :] >= sampling.num_logprobs[:, None]
        top_ids[unasked], top_logprobs[unasked] = -1, -np.inf
    return StepResult(
        token_ids=chosen.int().cpu().numpy(),
        logprobs=logprobs,
        top_ids=top_ids,
        top_logprobs=top_logprobs,
    )


def _owners(start: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """Row of each entry of a ragged list, i64[entries]."""
    return _to(np.repeat(np.arange(len(start) - 1), np.diff(start)), device)


def _unpacked(mask: np.ndarray[Any, Any], vocab_size: int, device: torch.device) -> Tensor:
    """bool[S, V] of bits packed in u32 words, lowest bit first."""
    words = _to(mask.view(np.int32), device)
    bits = torch.arange(32, device=device)
    return ((words[:, :, None] >> bits) & 1).bool().flatten(1)[:, :vocab_size]


def _to(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
