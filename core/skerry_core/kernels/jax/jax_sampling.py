"""Sampling in JAX, on the device that has the logits: the choices of `skerry_core.sampling`, bit
for bit, save that XLA on a CPU has no subnormal numbers.

Every function is one compiled program, for logits f32[S, V] that stay where they are, traced and
called under `jax.enable_x64`. Steps 4 to 6 look for the logits at which a sorted vocabulary would
be cut (`jax_search`): where top_k cuts, where top_p does, and the token that is drawn. A prefix of
the order is its least logit, and how many tokens of that logit belong to it, lowest ids first.
"""

from __future__ import annotations

from functools import partial
from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from skerry_core.kernels.jax.jax_math import exp_f32, uniform
from skerry_core.kernels.jax.jax_search import find, least_reaching, sortable, value_of
from skerry_core.kernels.jax.weights import Leaf
from skerry_core.sampling import GREEDY_TEMPERATURE, MAX_LOGIT, WEIGHT_ONE


class Style(NamedTuple, Generic[Leaf]):
    """How S positions choose their tokens: see `sampling.SAMPLE`."""

    temperature: Leaf  # f64[S]  as the other divisors are: see `jax_math`
    top_p: Leaf  # f64[S]
    top_k: Leaf  # i32[S]
    lowest: Leaf  # f32[S]  ln(min_p), at most 0: the least x that is kept
    seed: Leaf  # u64[S]
    position: Leaf  # i64[S]
    choice: Leaf  # i32[S]
    target: Leaf  # i32[S]


class Searches(NamedTuple):
    """Which searches any of the samples needs. Those that none needs cost nothing."""

    has_top_k: bool
    has_top_p: bool
    is_drawn: bool


class History(NamedTuple, Generic[Leaf]):
    """What penalties are about, H pairs of a sample and a token, each once; a sample beyond S is
    padding."""

    sample: Leaf  # i32[H]
    token: Leaf  # i32[H]
    times: Leaf  # i32[H]      in the output
    repetition: Leaf  # f64[H]
    frequency: Leaf  # f64[H]
    presence: Leaf  # f32[H]


class LikelyTokens(NamedTuple, Generic[Leaf]):
    """What logprobs are made of: they need logarithms that have the same bits everywhere."""

    picked: Leaf  # f32[S]      logit of the chosen token; -inf without one
    largest: Leaf  # f32[S]
    total: Leaf  # i64[S]       of the weights
    values: Leaf  # f32[S, k]   the largest logits
    ids: Leaf  # i32[S, k]      their tokens


@partial(jax.jit, static_argnames=("searches", "width"))
def choose(adjusted: Array, style: Style[Array], searches: Searches, width: int) -> Array:
    """Choose i32[width]: S tokens, -1 where none is possible, and zeros."""
    logits = _clean(adjusted)
    keys = sortable(logits)
    highest = keys.max(axis=1)
    ids = jnp.arange(keys.shape[1], dtype=jnp.int32)
    greedy = jnp.where(keys == highest[:, None], ids, keys.shape[1]).min(axis=1)
    largest = value_of(highest)
    chosen = greedy.astype(jnp.int32)
    if searches.is_drawn:
        is_greedy = style.temperature < GREEDY_TEMPERATURE
        chosen = jnp.where(is_greedy, chosen, _draw(logits, keys, largest, style, searches))
    chosen = jnp.where(largest == -jnp.inf, -1, chosen)
    chosen = jnp.where(style.target >= 0, style.target, chosen)
    return jnp.pad(chosen, (0, width - len(chosen)))


@jax.jit
def fed_history(
    made: Array, source: Array, is_known: Array, repetition: Array, frequency: Array,
    presence: Array,
) -> History[Array]:  # fmt: skip
    """Return the history of tokens that the step before made: of sample `source` i32[S], -1 for
    none, to be counted once unless `is_known` bool[S] says that the token is in the sample's
    history already. The penalties are those of the S samples."""
    token = jnp.where(source >= 0, made[source], -1)
    is_new = (token >= 0) & ~is_known
    sample = jnp.where(is_new, jnp.arange(len(token), dtype=jnp.int32), len(token))
    times = jnp.ones_like(token)
    return History(sample, token, times, repetition, frequency, presence)


@jax.jit
def count_fed(
    made: Array, source: Array, history: History[Array], is_known: Array
) -> tuple[History[Array], Array]:
    """Count such tokens once more where they are in a history; return of which samples they are,
    beside those that are known so already."""
    token = jnp.where(source >= 0, made[source], -1)
    is_fed = token.at[history.sample].get(mode="fill", fill_value=-1) == history.token
    is_known = is_known.at[history.sample].max(is_fed, mode="drop")
    return history._replace(times=history.times + is_fed), is_known


@jax.jit
def penalize(logits: Array, history: History[Array]) -> Array:
    """Apply step 2 of the meaning."""
    at = history.sample, history.token
    x = _clean(logits.at[at].get(mode="fill", fill_value=0))
    wide = x.astype(jnp.float64)
    scaled = jnp.where(x > 0, wide / history.repetition, wide * history.repetition)
    frequency = (history.frequency * history.times).astype(jnp.float32)
    x = scaled.astype(jnp.float32) - frequency
    x = jnp.where(history.times > 0, x - history.presence, x)
    return logits.at[at].set(_clean(x), mode="drop")


@jax.jit
def add_bias(logits: Array, sample: Array, token: Array, value: Array) -> Array:
    """Add f32[B] to the logits of samples and tokens i32[B], each pair once; a sample beyond S is
    padding."""
    x = _clean(logits.at[sample, token].get(mode="fill", fill_value=0))
    return logits.at[sample, token].set(_clean(x + value), mode="drop")


@jax.jit
def mask(logits: Array, allowed: Array) -> Array:
    """Return -inf for tokens whose bits in u32[S, ceil(V / 32)] are 0, lowest bits first."""
    bits = (allowed[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    is_allowed = bits.reshape(len(logits), -1)[:, : logits.shape[1]] == 1
    return jnp.where(is_allowed, logits, -jnp.inf)


@jax.jit
def keep_typical(logits: Array, temperature: Array, typical_p: Array) -> Array:
    """Return -inf for tokens that typical_p f64[S] leaves out at temperatures f64[S]; 1 leaves
    none."""
    logits = _clean(logits)
    x = _scaled(logits, logits.max(axis=1), temperature)
    weight, e = _weights(x), exp_f32(x).astype(jnp.float64)
    moments = jnp.where(weight > 0, e * x.astype(jnp.float64), 0)
    moment = jnp.rint(moments * WEIGHT_ONE).astype(jnp.int64).sum(axis=1)
    total = weight.sum(axis=1)
    mean = (moment.astype(jnp.float64) / total.astype(jnp.float64)).astype(jnp.float32)
    nearness = ~sortable(jnp.abs(x - mean[:, None]))
    limit = least_reaching(typical_p * total.astype(jnp.float64), _most(logits))
    least, _ = find(nearness, weight, limit)
    is_kept = (nearness >= least[:, None]) | (typical_p >= 1)[:, None]
    return jnp.where(is_kept, logits, -jnp.inf)


@partial(jax.jit, static_argnames="count")
def likely_tokens(logits: Array, chosen: Array, count: int) -> LikelyTokens[Array]:
    """Return what the logprobs of chosen tokens i32[>= S], and of the `count` most likely ones, are
    made of."""
    raw = _clean(logits)
    keys, chosen = sortable(raw), chosen[: len(raw)]
    largest = value_of(keys.max(axis=1))
    picked = jnp.take_along_axis(raw, jnp.maximum(chosen, 0)[:, None], axis=1)[:, 0]
    _, ids = jax.lax.top_k(keys, count)  # the lower id first among equals
    return LikelyTokens(
        picked=jnp.where(chosen < 0, -jnp.inf, picked),
        largest=largest,
        total=_weights(raw - largest[:, None]).sum(axis=1),
        values=jnp.take_along_axis(raw, ids, axis=1),
        ids=ids.astype(jnp.int32),
    )


def _draw(
    logits: Array, keys: Array, largest: Array, style: Style[Array], searches: Searches
) -> Array:
    """Draw by inverse CDF over (logit descending, id ascending) of what is kept: i32[S].

    Garbage where a sample is greedy or every logit is -inf.
    """

    def weight_at(key: Array) -> Array:
        return _weights(_scaled(value_of(key), largest, style.temperature))

    x = _scaled(logits, largest, style.temperature)
    is_kept = x >= style.lowest[:, None]
    weight = jnp.where(is_kept, _weights(x), 0)
    total = weight.sum(axis=1)
    if searches.has_top_k:
        kept = is_kept.astype(jnp.int64)
        cuts = (style.top_k > 0) & (style.top_k < kept.sum(axis=1))
        limit = jnp.where(cuts, style.top_k, 1).astype(jnp.int64)
        least, before = find(keys, kept, limit)
        above = jnp.where(keys > least[:, None], weight, 0).sum(axis=1)
        total = jnp.where(cuts, above + (limit - before) * weight_at(least), total)
    if searches.has_top_p:
        limit = least_reaching(style.top_p * total.astype(jnp.float64), _most(logits))
        least, beyond = find(keys, weight, limit)
        each = jnp.maximum(weight_at(least), 1)
        ties = (limit - beyond + each - 1) // each
        total = jnp.where(style.top_p < 1, jnp.minimum(beyond + ties * each, total), total)
    u = uniform(style.seed, style.position, style.choice)
    drawn = jnp.minimum((u * total.astype(jnp.float64)).astype(jnp.int64), total - 1)
    key, beyond = find(keys, weight, drawn + 1)
    rank = (drawn - beyond) // jnp.maximum(weight_at(key), 1)
    last = keys.shape[1] - 1
    from_last = jnp.arange(last, -1, -1, dtype=jnp.uint32)[None]
    ties = (keys == key[:, None]).astype(jnp.int64)
    found, _ = find(from_last, ties, rank + 1, bits=max(last.bit_length(), 1))
    return last - found.astype(jnp.int32)


def _clean(logits: Array) -> Array:
    """Return logits with NaN as -inf and +inf as the largest float32."""
    return jnp.where(jnp.isnan(logits), -jnp.inf, jnp.minimum(logits, MAX_LOGIT))


def _scaled(logits: Array, largest: Array, temperature: Array) -> Array:
    """Return x of the meaning: f32[S, V] of logits f32[S, V], or f32[S] of one of each."""
    if logits.ndim > largest.ndim:
        largest, temperature = largest[:, None], temperature[:, None]
    return ((logits - largest).astype(jnp.float64) / temperature).astype(jnp.float32)


def _weights(x: Array) -> Array:
    """Return e^x, for x <= 0, in fixed point as `sampling.weights` has it: i64."""
    return jnp.rint(exp_f32(x).astype(jnp.float64) * WEIGHT_ONE).astype(jnp.int64)


def _most(logits: Array) -> int:
    """Return what a row's weights sum up to at most."""
    return WEIGHT_ONE * logits.shape[1]
