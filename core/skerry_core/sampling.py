"""How a token is chosen from logits: the meaning, in NumPy. `kernels.cpu.numba_sampling` is the
fast twin, which chooses the same token and gives the same logprobs, bit for bit.

The order (vLLM's), for one sampled position with raw logits f32[V]:

1. NaN counts as -inf, and +inf as the largest float32, here and after each adjustment.
2. Repetition penalty over prompt and output: a positive logit is divided by it, another multiplied.
   Then minus frequency_penalty * count and minus presence_penalty, over the output.
3. Logit bias is added; then tokens that `allowed` leaves out become -inf, and so do those that
   typical_p leaves out where a token is drawn: of x as in step 4, the mean is taken under the
   weights, and the tokens nearest to it stay until they weigh typical_p of all, with every one as
   near as the last. (x - mean is entropy + ln p, so these are the locally typical tokens of
   Meister et al., 2022, https://arxiv.org/abs/2202.00666.)
4. Temperature below 1e-5: the largest logit wins, the lowest id among equals. Otherwise
   x = (logit - largest) / temperature, in float32.
5. Tokens stand in order of (logit descending, id ascending), and every filter keeps a prefix:
   min_p those with x >= ln(min_p); then top_k the first k; then top_p the shortest prefix whose
   weight reaches top_p of what is left by then. At least one token is kept.
6. The token at u * (weight kept) of the running sum is chosen: the inverse CDF, where u in (0, 1)
   is Philox's (seed, position, choice).

A weight is e^x in fixed point with 40 bits after the point. Sums of integers are exact, so neither
vector width nor order of summation can change a choice; what is left out, below 2^-41 of the most
likely token, could not be drawn in a lifetime.

Logprobs are of the raw distribution: the log-softmax of step 1's logits, without the rest.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from skerry_core import exact_math as reference_math
from skerry_core.batch import Float32, Int64, SamplingBatch, StepResult

GREEDY_TEMPERATURE = np.float32(1e-5)  # below it
WEIGHT_ONE = 1 << 40  # the weight of the most likely token
MAX_LOGIT = np.float32(np.finfo(np.float32).max)
FINITE = sys.float_info.max
ABOVE_ZERO = math.ulp(0.0)


class SamplingParams(Protocol):
    """How the next token is chosen, and when to stop.

    Randomness is counter-based (Philox4x32-10, Salmon et al., SC'11): key = `seed`, counter =
    (absolute position, `choice`), so a token does not depend on batch, retry or machine.
    """

    @property
    def temperature(self) -> float:
        """Return what logits are divided by; below 1e-5 is greedy."""
        ...

    @property
    def top_p(self) -> float:
        """Return a share in (0, 1]."""
        ...

    @property
    def top_k(self) -> int:
        """Return how many tokens; 0 is off."""
        ...

    @property
    def min_p(self) -> float:
        """Return a share in [0, 1]; relative to the most likely token."""
        ...

    @property
    def typical_p(self) -> float:
        """Return a share in (0, 1]; 1 is off."""
        ...

    @property
    def repetition_penalty(self) -> float:
        """Return the penalty of tokens of prompt and output (Keskar et al., 2019); 1 is off."""
        ...

    @property
    def frequency_penalty(self) -> float:
        """Return the penalty of tokens of the output, per occurrence."""
        ...

    @property
    def presence_penalty(self) -> float:
        """Return the penalty of tokens of the output, once."""
        ...

    @property
    def seed(self) -> int:
        """Return 64 bits, unsigned."""
        ...

    @property
    def choice(self) -> int:
        """Index of this choice when n > 1."""
        ...

    @property
    def logit_bias(self) -> Sequence[tuple[int, float]]:
        """Return pairs (token id, added to its logit)."""
        ...

    @property
    def logprobs(self) -> int | None:
        """Return None for none; k: the chosen token's and the k most likely tokens'."""
        ...

    @property
    def max_tokens(self) -> int:
        """Return output tokens, those of an earlier attempt included."""
        ...

    @property
    def min_tokens(self) -> int:
        """Stop tokens are masked before this many output tokens."""
        ...

    @property
    def stop_token_ids(self) -> Sequence[int]: ...


class Parameter(NamedTuple):
    """A field of `SamplingParams` that every sample of a batch has as a number."""

    dtype: type[np.generic]
    off: float  # the value at which it changes nothing
    least: float
    most: float  # NaN is not between them


PARAMETERS: Final = {
    "temperature": Parameter(np.float32, 0.0, 0.0, FINITE),
    "top_p": Parameter(np.float32, 1.0, ABOVE_ZERO, 1.0),
    "top_k": Parameter(np.int32, 0, 0, (1 << 31) - 1),
    "min_p": Parameter(np.float32, 0.0, 0.0, 1.0),
    "typical_p": Parameter(np.float32, 1.0, ABOVE_ZERO, 1.0),
    "repetition_penalty": Parameter(np.float32, 1.0, ABOVE_ZERO, FINITE),
    "frequency_penalty": Parameter(np.float32, 0.0, -FINITE, FINITE),
    "presence_penalty": Parameter(np.float32, 0.0, -FINITE, FINITE),
}

SAMPLE: Final = np.dtype(
    [
        ("position", np.int64),  # absolute, of the token being chosen: the Philox counter
        ("seed", np.uint64),  # the Philox key
        ("choice", np.int32),  # second counter word
        ("num_logprobs", np.int32),  # -1: none; k >= 0: the chosen token's and the k most likely
        ("target", np.int32),  # -1: sample; else this token is "chosen" (prompt logprobs)
        *((name, parameter.dtype) for name, parameter in PARAMETERS.items()),
    ],
    align=True,
)
"""How one position chooses its token."""


def sample(logits: Float32, sampling: SamplingBatch) -> StepResult:
    """Choose a token for each of the S rows of `logits` f32[S, V]. See the module's docstring.

    A chosen token of -1 says that no token is possible: every logit is -inf or NaN. Token ids in
    `sampling` must be below V.
    """
    num_samples, vocab_size = logits.shape
    samples = sampling.samples
    result = StepResult.blank(samples["target"].copy(), samples["num_logprobs"])
    for s in range(num_samples):
        raw = clean(logits[s])
        if samples["target"][s] < 0:
            result.token_ids[s] = choose(adjust(raw, sampling, s), samples[s])
        if (k := int(samples["num_logprobs"][s])) >= 0:
            k = min(k, vocab_size)
            logprobs = log_softmax(raw)
            token = result.token_ids[s]
            result.logprobs[s] = logprobs[token] if token >= 0 else -np.inf
            result.top_ids[s, :k] = descending(raw)[:k]
            result.top_logprobs[s, :k] = logprobs[result.top_ids[s, :k]]
    return result


def clean(logits: Float32) -> Float32:
    """Return logits with NaN as -inf and +inf as the largest float32."""
    return np.where(np.isnan(logits), np.float32(-np.inf), np.minimum(logits, MAX_LOGIT))


def adjust(raw: Float32, sampling: SamplingBatch, s: int) -> Float32:
    """Apply steps 2 and 3 of sample s to a copy of its logits f32[V]."""
    adjusted, sample = raw.copy(), sampling.samples[s]
    own = slice(sampling.history_start[s], sampling.history_start[s + 1])
    ids, counts = sampling.history_ids[own], sampling.history_counts[own]
    x = adjusted[ids]
    repetition = sample["repetition_penalty"]
    with np.errstate(all="ignore"):
        x = np.where(x > 0, x / repetition, x * repetition)
        x = x - sample["frequency_penalty"] * counts.astype(np.float32)
        x = np.where(counts > 0, x - sample["presence_penalty"], x)
        adjusted[ids] = clean(x)
        for i in range(sampling.bias_start[s], sampling.bias_start[s + 1]):
            token = sampling.bias_ids[i]
            adjusted[token] = clean(adjusted[token] + sampling.bias_values[i])
    if sampling.allowed.shape[1]:
        bits = np.unpackbits(sampling.allowed[s].astype("<u4").view(np.uint8), bitorder="little")
        adjusted[bits[: len(adjusted)] == 0] = -np.inf
    return typical(adjusted, sample) if draws_typical(sample) else adjusted


def draws_typical(sample: Any) -> Any:
    """Return whether typical_p leaves something out: bool of one sample, or bool[S] of several."""
    return (sample["typical_p"] < 1) & (sample["temperature"] >= GREEDY_TEMPERATURE)


def typical(adjusted: Float32, sample: np.void) -> Float32:
    """Return logits f32[V] with -inf for the tokens that typical_p leaves out."""
    largest = adjusted.max()
    if largest == -np.inf:
        return adjusted
    with np.errstate(over="ignore", invalid="ignore"):
        x = (adjusted - largest) / sample["temperature"]
        weight = weights(x)
        moments = np.where(weight > 0, reference_math.exp_f32(x).astype(np.float64) * x, 0)
    moment = np.rint(moments * WEIGHT_ONE).astype(np.int64).sum()
    mean = np.float32(np.float64(moment) / np.float64(weight.sum()))
    distance = np.abs(x - mean)
    nearest = np.argsort(distance, kind="stable")
    running = np.cumsum(weight[nearest])
    limit = np.float64(sample["typical_p"]) * np.float64(running[-1])
    last = nearest[np.count_nonzero(running < limit)]
    return np.where(distance <= distance[last], adjusted, np.float32(-np.inf))


def descending(logits: Float32) -> Int64:
    """Return token ids by (logit descending, id ascending)."""
    return np.argsort(-logits, kind="stable")


def choose(adjusted: Float32, sample: np.void) -> int:
    """Return the token of a sample, or -1 when all its logits f32[V] are -inf: steps 4 to 6."""
    order = descending(adjusted)
    largest = adjusted[order[0]]
    if largest == -np.inf:
        return -1
    if sample["temperature"] < GREEDY_TEMPERATURE:
        return int(order[0])

    with np.errstate(over="ignore"):
        x = (adjusted[order] - largest) / sample["temperature"]
    kept = len(x)
    if sample["min_p"] > 0:
        lowest = np.minimum(reference_math.log_f32(sample["min_p"]), 0)
        kept = int(np.count_nonzero(x >= lowest))
    if sample["top_k"] > 0:
        kept = min(kept, int(sample["top_k"]))
    running = np.cumsum(weights(x[:kept]))
    if sample["top_p"] < 1:
        limit = np.float64(sample["top_p"]) * np.float64(running[-1])
        running = running[: np.count_nonzero(running[:-1] < limit) + 1]

    u = reference_math.uniform(int(sample["seed"]), int(sample["position"]), int(sample["choice"]))
    drawn = min(int(u * np.float64(running[-1])), int(running[-1]) - 1)
    return int(order[np.searchsorted(running, drawn, side="right")])


def lowest_kept(min_p: Float32) -> Float32:
    """Return ln(min_p), at most 0: the least x that is kept; -inf where the filter is off."""
    with np.errstate(divide="ignore"):
        lowest = np.where(min_p > 0, np.minimum(reference_math.log_f32(min_p), 0), -np.inf)
    return lowest.astype(np.float32)


def weights(x: Float32) -> Int64:
    """Return e^x, for x <= 0, in fixed point: i64, 1.0 is `WEIGHT_ONE`, ties to even."""
    e = reference_math.exp_f32(x).astype(np.float64)
    return np.rint(e * WEIGHT_ONE).astype(np.int64)


def log_softmax(raw: Float32) -> Float32:
    """Return log-probabilities f32[V] of clean logits; all -inf when every logit is."""
    largest = raw.max()
    if largest == -np.inf:
        return np.full_like(raw, -np.inf)
    with np.errstate(over="ignore"):
        total = weights(raw - largest).sum()
    return log_shares(raw, largest, total)


def log_shares(values: Float32, largest: Float32, total: Int64) -> Float32:
    """Return log-probabilities of logits, under the largest of their row and the sum of its
    weights; shapes are broadcast."""
    log_total = reference_math.log_f64(total / WEIGHT_ONE)
    with np.errstate(over="ignore", invalid="ignore"):
        shares = (values.astype(np.float64) - largest) - log_total
        return np.where(largest == -np.inf, -np.inf, shares).astype(np.float32)
