"""Sampling in Torch, on the device that holds the logits: the choices of `skerry_core.sampling`.

Everything that touches the vocabulary stays on the device. `begin` leaves the choices there for
the next step, and lets the host go on; what it needs arrives meanwhile.
Plain Torch sorts, and draws its uniforms on the host, where they are a handful of integers; where
Triton runs, `triton_sampling.choose` does both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from skerry_core.batch import SamplingBatch, StepResult, owners
from skerry_core.exact_math import uniform
from skerry_core.kernels.torch.torch_math import exp_f32
from skerry_core.kernels.torch.torch_penalties import clean, penalize
from skerry_core.kernels.torch.torch_staging import HostFetch, send, to_device
from skerry_core.sampling import (
    GREEDY_TEMPERATURE,
    WEIGHT_ONE,
    draws_typical,
    log_shares,
    lowest_kept,
)

COUNT, MASS, DRAW = range(3)  # searches, in this order: where top_k and top_p cut, and the token


class Choose(Protocol):
    """Steps 4 to 6 as one operation, with the tensors of `styles`: see `triton_sampling.choose`."""

    def __call__(
        self, logits: Tensor, temperature: Tensor, top_p: Tensor, top_k: Tensor, lowest: Tensor,
        seeds: Tensor, positions: Tensor, choices: Tensor, targets: Tensor, *,
        searches: Sequence[int] = ...,
    ) -> Tensor: ...  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampled:
    """Tokens that are being chosen."""

    chosen: Tensor  # i64[S], on the device; -1: none is possible
    num_logprobs: NDArray[np.int32]  # i32[S]  that are returned of each
    told: HostFetch  # `chosen`; of samples with logprobs what `_asked` gives

    def result(self) -> StepResult:
        """Wait for them."""
        chosen, *asked = self.told.wait()
        result = StepResult.blank(chosen.int().numpy(), self.num_logprobs)
        if asked:
            self._tell(result, *asked)
        return result

    def _tell(self, result: StepResult, *asked: Tensor) -> None:
        picked, largest, total, values, ids = (each.numpy() for each in asked)
        rows = np.flatnonzero(self.num_logprobs >= 0)
        shown = ids.shape[1]
        result.logprobs[rows] = log_shares(picked, largest, total)[:, 0]
        told = np.arange(shown) < self.num_logprobs[rows, None]
        result.top_ids[rows, :shown] = np.where(told, ids, -1)
        top_logprobs = log_shares(values, largest, total)
        result.top_logprobs[rows, :shown] = np.where(told, top_logprobs, -np.inf)


def sample(logits: Tensor, sampling: SamplingBatch, choose: Choose | None = None) -> StepResult:
    """Choose a token for each of the S rows of `logits` f32[S, V], which is left unchanged."""
    return begin(logits, sampling, choose).result()


def begin(
    logits: Tensor,
    sampling: SamplingBatch,
    choose: Choose | None = None,
    chosen: Tensor | None = None,
    fed: Tensor | None = None,
) -> Sampled:
    """Do as `sample` does, without waiting. Nothing reads `logits`, or the batch, once this
    returns, but what the device does before whatever is launched next.

    `chosen` i64[S] was chosen already of logits without NaN, where nothing adjusts them; `fed` is
    what `torch_penalties.fed_tokens` returned.
    """
    samples, raw = sampling.samples, logits
    if chosen is None:
        raw = clean(logits.float())
        adjusted = _adjusted(raw, sampling, fed)
        if choose is None:
            targets = to_device(samples["target"], logits.device).long()
            chosen = torch.where(targets >= 0, targets, _chosen(adjusted, sampling))
        else:
            on_device = send(styles(samples), logits.device)
            chosen = choose(adjusted, *on_device, searches=searches(samples))
    told = HostFetch([chosen, *_asked(raw, chosen, samples["num_logprobs"])])
    return Sampled(chosen, samples["num_logprobs"], told)


def adjusts(sampling: SamplingBatch) -> bool:
    """Return whether logits are changed before tokens are chosen of them."""
    return bool(
        len(sampling.history_ids)
        or len(sampling.bias_ids)
        or sampling.allowed.shape[1]
        or draws_typical(sampling.samples).any()
    )


def styles(samples: NDArray[np.void]) -> list[NDArray[Any]]:
    """Return what `Choose` takes beside logits, each [S]: temperature, top_p, top_k, ln(min_p),
    seed, position, choice and target."""
    return [
        samples["temperature"], samples["top_p"], samples["top_k"], lowest_kept(samples["min_p"]),
        samples["seed"].view(np.int64), samples["position"], samples["choice"], samples["target"],
    ]  # fmt: skip


def searches(samples: NDArray[np.void]) -> list[int]:
    """Return the searches that any of the samples needs."""
    drawn = samples[samples["temperature"] >= GREEDY_TEMPERATURE]
    needed = (drawn["top_k"] > 0).any(), (drawn["top_p"] < 1).any(), len(drawn) > 0
    return [search for search in (COUNT, MASS, DRAW) if needed[search]]


def _chosen(adjusted: Tensor, sampling: SamplingBatch) -> Tensor:
    """Do steps 4 to 6 by sorting: i64[S]."""
    chosen, samples = adjusted.argmax(-1), sampling.samples
    is_drawn = (samples["temperature"] >= GREEDY_TEMPERATURE) & (samples["target"] < 0)
    drawing = np.flatnonzero(is_drawn)
    if len(drawing):
        rows = to_device(drawing, adjusted.device)
        chosen[rows] = _draw(adjusted[rows], samples[drawing])
    return torch.where(adjusted.amax(-1) > -torch.inf, chosen, -1)


def _adjusted(raw: Tensor, sampling: SamplingBatch, fed: Tensor | None) -> Tensor:
    """Apply penalties, bias, grammar mask and typical_p, in that order, to a copy; return `raw`
    itself where there are none."""
    if not adjusts(sampling):
        return raw
    adjusted = raw.clone()
    if len(sampling.history_ids):
        penalize(adjusted, sampling, fed)
    if len(sampling.bias_ids):
        rows = to_device(owners(sampling.bias_start), raw.device)
        ids = to_device(sampling.bias_ids, raw.device).long()
        values = to_device(sampling.bias_values, raw.device)
        adjusted[rows, ids] = clean(adjusted[rows, ids] + values)
    if sampling.allowed.shape[1]:
        allowed = _unpacked(sampling.allowed, raw.shape[1], raw.device)
        adjusted.masked_fill_(~allowed, -torch.inf)
    drawing = np.flatnonzero(draws_typical(sampling.samples))
    if len(drawing):
        rows = to_device(drawing, raw.device)
        adjusted[rows] = _typical(adjusted[rows], sampling.samples[drawing])
    return adjusted


def _typical(adjusted: Tensor, samples: NDArray[np.void]) -> Tensor:
    """Return logits f32[rows, V] with -inf for the tokens that typical_p leaves out."""
    device = adjusted.device
    temperature = to_device(samples["temperature"], device)[:, None]
    x = (adjusted - adjusted.amax(-1, keepdim=True)) / temperature
    weight = weights(x)
    moments = torch.where(weight > 0, exp_f32(x).double() * x.double(), 0)
    moment = (moments * WEIGHT_ONE).round().long().sum(-1, keepdim=True)
    mean = (moment.double() / weight.sum(-1, keepdim=True).double()).float()
    distance, nearest = (x - mean).abs().sort(dim=-1)
    running = weight.gather(1, nearest).cumsum(-1)
    limit = to_device(samples["typical_p"], device)[:, None].double() * running[:, -1:].double()
    last = (running < limit).sum(-1, keepdim=True).clamp(max=running.shape[1] - 1)
    return adjusted.where((x - mean).abs() <= distance.gather(1, last), -torch.inf)


def _draw(adjusted: Tensor, samples: NDArray[np.void]) -> Tensor:
    """Draw by inverse CDF over (logit descending, id ascending) of what is kept: i64[rows].

    `adjusted` is f32[rows, V]. Garbage, but a token, where every logit is -inf.
    """
    device, last = adjusted.device, adjusted.shape[1] - 1
    # Adding 0 makes -0 equal to 0 also for sorts that compare bits.
    ordered, ids = (adjusted + 0.0).sort(dim=-1, descending=True, stable=True)
    x = (ordered - ordered[:, :1]) / to_device(samples["temperature"], device)[:, None]

    kept = (x >= to_device(lowest_kept(samples["min_p"]), device)[:, None]).sum(-1, keepdim=True)
    top_k = to_device(samples["top_k"], device)[:, None]
    kept = torch.where(top_k > 0, kept.minimum(top_k), kept).clamp(min=1)
    rank = torch.arange(x.shape[1], device=device)
    running = torch.where(rank < kept, weights(x), 0).cumsum(-1)

    top_p = to_device(samples["top_p"], device)[:, None]
    limit = top_p.double() * running[:, -1:].double()
    reached = (running < limit).sum(-1, keepdim=True)  # the first rank that reaches the limit
    end = torch.where(top_p < 1, reached.minimum(kept - 1), kept - 1)
    total = running.gather(1, end)
    u = torch.tensor(_uniforms(samples), dtype=torch.float64, device=device)[:, None]
    drawn = torch.minimum((u * total).long(), total - 1)
    picked = torch.searchsorted(running, drawn, right=True).clamp(max=last)
    return ids.gather(1, picked)[:, 0]


def _uniforms(samples: NDArray[np.void]) -> list[float]:
    return [
        uniform(int(sample["seed"]), int(sample["position"]), int(sample["choice"]))
        for sample in samples
    ]


def weights(x: Tensor) -> Tensor:
    """Return e^x, for x <= 0, in fixed point as `sampling.weights` has it: i64."""
    return (exp_f32(x).double() * WEIGHT_ONE).round().long()


def _asked(raw: Tensor, chosen: Tensor, num_logprobs: NDArray[np.int32]) -> list[Tensor]:
    """Return what logprobs are made of, for the n samples that have them: logits f32[n, 1] of what
    was chosen, the largest of each, sums of weights i64[n, 1], and the most likely ones with their
    ids, f32[n, k] and i32[n, k]. Nothing where none has."""
    asked = np.flatnonzero(num_logprobs >= 0)
    if not len(asked):
        return []
    rows = to_device(asked, raw.device)
    own, tokens = raw[rows], chosen[rows, None]
    largest = own.amax(-1, keepdim=True)
    total = weights(own - largest).sum(-1, keepdim=True)
    picked = torch.where(tokens < 0, -torch.inf, own.gather(1, tokens.clamp(min=0)))
    shown = min(int(num_logprobs.max()), raw.shape[1])
    values, ids = own[:, :shown], own[:, :shown].int()
    if shown:
        # A stable sort breaks ties by ascending id; topk does not say how it does.
        ordered = (own + 0.0).sort(dim=-1, descending=True, stable=True)
        values, ids = ordered.values[:, :shown], ordered.indices[:, :shown].int()
    return [picked, largest, total, values, ids]


def _unpacked(mask: NDArray[np.uint32], vocab_size: int, device: torch.device) -> Tensor:
    """Unpack bits in u32 words, lowest bit first: bool[S, V]."""
    words = to_device(mask.view(np.int32), device)
    bits = torch.arange(32, dtype=torch.int32, device=device)
    return ((words[:, :, None] >> bits) & 1).bool().flatten(1)[:, :vocab_size]
