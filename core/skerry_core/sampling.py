"""How a token is chosen from logits: the meaning, in NumPy. `kernels.cpu.numba_sampling` is the
fast twin, which chooses the same token and gives the same logprobs, bit for bit.

The order (vLLM's), for one sampled position with raw logits f32[V]:

1. NaN counts as -inf, and +inf as the largest float32, here and after each adjustment.
2. Repetition penalty over prompt and output: a positive logit is divided by it, another multiplied.
   Then minus frequency_penalty * count and minus presence_penalty, over the output.
3. Logit bias is added; then tokens that `allowed` leaves out become -inf.
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

import numpy as np

from skerry_core import exact_math as reference_math
from skerry_core.batch import Float32, Int64, SamplingBatch, StepResult

GREEDY_TEMPERATURE = np.float32(1e-5)  # below it
WEIGHT_ONE = 1 << 40  # the weight of the most likely token
MAX_LOGIT = np.float32(np.finfo(np.float32).max)


def sample(logits: Float32, sampling: SamplingBatch) -> StepResult:
    """Choose a token for each of the S rows of `logits` f32[S, V]. See the module's docstring.

    A chosen token of -1 says that no token is possible: every logit is -inf or NaN. Token ids in
    `sampling` must be below V.
    """
    num_samples, vocab_size = logits.shape
    width = max(0, int(sampling.num_logprobs.max(initial=0)))
    result = StepResult(
        token_ids=sampling.targets.copy(),
        logprobs=np.zeros(num_samples, np.float32),
        top_ids=np.full((num_samples, width), -1, np.int32),
        top_logprobs=np.full((num_samples, width), -np.inf, np.float32),
    )
    for s in range(num_samples):
        raw = clean(logits[s])
        if sampling.targets[s] < 0:
            result.token_ids[s] = choose(adjust(raw, sampling, s), sampling, s)
        if (k := int(sampling.num_logprobs[s])) >= 0:
            k = min(k, vocab_size)
            logprobs = log_softmax(raw)
            token = result.token_ids[s]
            result.logprobs[s] = logprobs[token] if token >= 0 else -np.inf
            result.top_ids[s, :k] = descending(raw)[:k]
            result.top_logprobs[s, :k] = logprobs[result.top_ids[s, :k]]
    return result


def clean(logits: Float32) -> Float32:
    """Logits with NaN as -inf and +inf as the largest float32."""
    return np.where(np.isnan(logits), np.float32(-np.inf), np.minimum(logits, MAX_LOGIT))


def adjust(raw: Float32, sampling: SamplingBatch, s: int) -> Float32:
    """Steps 2 and 3: penalties, bias and mask of sample s, on a copy of its logits f32[V]."""
    adjusted = raw.copy()
    own = slice(sampling.history_start[s], sampling.history_start[s + 1])
    ids, counts = sampling.history_ids[own], sampling.history_counts[own]
    x = adjusted[ids]
    repetition = sampling.repetition_penalty[s]
    with np.errstate(all="ignore"):
        x = np.where(x > 0, x / repetition, x * repetition)
        x = x - sampling.frequency_penalty[s] * counts.astype(np.float32)
        x = np.where(counts > 0, x - sampling.presence_penalty[s], x)
        adjusted[ids] = clean(x)
        for i in range(sampling.bias_start[s], sampling.bias_start[s + 1]):
            token = sampling.bias_ids[i]
            adjusted[token] = clean(adjusted[token] + sampling.bias_values[i])
    if sampling.allowed is not None:
        bits = np.unpackbits(sampling.allowed[s].astype("<u4").view(np.uint8), bitorder="little")
        adjusted[bits[: len(adjusted)] == 0] = -np.inf
    return adjusted


def descending(logits: Float32) -> Int64:
    """Token ids by (logit descending, id ascending)."""
    return np.argsort(-logits, kind="stable")


def choose(adjusted: Float32, sampling: SamplingBatch, s: int) -> int:
    """Steps 4 to 6: the token of sample s, or -1 when all logits are -inf."""
    order = descending(adjusted)
    largest = adjusted[order[0]]
    if largest == -np.inf:
        return -1
    if sampling.temperature[s] < GREEDY_TEMPERATURE:
        return int(order[0])

    with np.errstate(over="ignore"):
        x = (adjusted[order] - largest) / sampling.temperature[s]
    kept = len(x)
    if sampling.min_p[s] > 0:
        lowest = np.minimum(reference_math.log_f32(sampling.min_p[s]), 0)
        kept = int(np.count_nonzero(x >= lowest))
    if sampling.top_k[s] > 0:
        kept = min(kept, int(sampling.top_k[s]))
    running = np.cumsum(weights(x[:kept]))
    if sampling.top_p[s] < 1:
        limit = np.float64(sampling.top_p[s]) * np.float64(running[-1])
        running = running[: np.count_nonzero(running[:-1] < limit) + 1]

    u = reference_math.uniform(
        int(sampling.seeds[s]), int(sampling.positions[s]), int(sampling.choices[s])
    )
    drawn = min(int(u * np.float64(running[-1])), int(running[-1]) - 1)
    return int(order[np.searchsorted(running, drawn, side="right")])


def weights(x: Float32) -> Int64:
    """e^x, for x <= 0, in fixed point: i64, 1.0 is `WEIGHT_ONE`, ties to even."""
    e = reference_math.exp_f32(x).astype(np.float64)
    return np.rint(e * WEIGHT_ONE).astype(np.int64)


def log_softmax(raw: Float32) -> Float32:
    """Log-probabilities f32[V] of clean logits; all -inf when every logit is."""
    largest = raw.max()
    if largest == -np.inf:
        return np.full_like(raw, -np.inf)
    with np.errstate(over="ignore"):
        total = weights(raw - largest).sum()
        log_total = reference_math.log_f64(np.float64(total) / WEIGHT_ONE)
        logprobs = (raw.astype(np.float64) - np.float64(largest)) - log_total
        return logprobs.astype(np.float32)
