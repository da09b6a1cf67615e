"""Where a JAX runner chooses tokens: on the host with the CPU engine's kernel, or on the device.

On the device a step's tokens are there for the next step, and nothing waits for them. Programs are
few: samples come in as many rows as the logits have, penalties and biases in pieces of one size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, Protocol

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from skerry_core.batch import SamplingBatch, StepResult, owners
from skerry_core.kernels.jax.jax_sampling import (
    History,
    LikelyTokens,
    Searches,
    Style,
    add_bias,
    choose,
    count_fed,
    fed_history,
    keep_typical,
    likely_tokens,
    mask,
    penalize,
)
from skerry_core.kernels.jax.weights import place
from skerry_core.runners.host_sampling import HostSampler
from skerry_core.runners.jax.jax_calls import bucket, padded, sizes_up_to
from skerry_core.sampling import (
    GREEDY_TEMPERATURE,
    SAMPLE,
    draws_typical,
    log_shares,
    lowest_kept,
)

Place = Literal["host", "device"]
_PIECE = 4096  # pairs of a sample and a token that are penalised, or biased, in one call
_LEAST_LIKELY = 32  # tokens beside a chosen one: the least that are fetched where any are
_SEARCHES = [
    Searches(has_top_k=top_k, has_top_p=top_p, is_drawn=drawn)
    for top_k, top_p, drawn in product((False, True), repeat=3)
    if drawn or not (top_k or top_p)
]


SampledStep = Callable[[], StepResult]
"""Waits for the tokens of a step that are being chosen."""


class JaxSampler(Protocol):
    """Chooses the tokens of a step."""

    @property
    def made(self) -> Array:
        """Return i32[most samples], on the device: the tokens of the step before, as far as the
        next may be fed with them."""
        ...

    def warm_up(self, rows: int) -> None:
        """Compile what samples of logits f32[rows, V] need."""
        ...

    def begin(self, logits: Array, sampling: SamplingBatch) -> SampledStep:
        """Choose a token for each of S samples by the first S rows of logits. Nothing reads the
        batch once this returns."""
        ...


def nothing_sampled() -> StepResult:
    """Return what a step chooses that ends no prompt."""
    return StepResult.blank(np.zeros(0, np.int32), np.zeros(0, np.int32))


class OnHost:
    """Brings logits to the host, and chooses there before it returns."""

    def __init__(self, sampler: HostSampler, made: Array) -> None:
        self.made = made  # nothing is ever fed
        self._sampler = sampler

    def warm_up(self, rows: int) -> None:
        """Compile nothing: the kernel takes any size."""

    def begin(self, logits: Array, sampling: SamplingBatch) -> SampledStep:
        result = self._sampler(np.asarray(logits)[: len(sampling.samples)], sampling)
        return lambda: result


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    """Tokens that a device chooses, and what their logprobs are made of where any has some."""

    chosen: Array
    likely: LikelyTokens[Array] | None
    num_logprobs: NDArray[np.int32]

    def result(self) -> StepResult:
        count = len(self.num_logprobs)
        result = StepResult.blank(np.array(self.chosen)[:count], self.num_logprobs)
        if self.likely is not None:
            found = LikelyTokens(*(np.asarray(each)[:count] for each in self.likely))
            shown = min(result.top_ids.shape[1], found.ids.shape[1])
            is_shown = np.arange(shown) < self.num_logprobs[:, None]
            result.logprobs[:] = log_shares(found.picked, found.largest, found.total)
            top = log_shares(found.values[:, :shown].T, found.largest, found.total).T
            result.top_ids[:, :shown] = np.where(is_shown, found.ids[:, :shown], -1)
            result.top_logprobs[:, :shown] = np.where(is_shown, top, -np.inf)
        return result


class OnDevice:
    """Chooses where the logits are; the host goes on."""

    def __init__(self, vocab_size: int, max_samples: int, mesh: Mesh) -> None:
        self._vocab_size = vocab_size
        self._max_samples = max_samples
        self._mesh = mesh
        self.made = place(np.zeros(max_samples, np.int32), mesh, P())

    def warm_up(self, rows: int) -> None:
        shape = rows, self._vocab_size
        logits = place(np.zeros(shape, np.float32), self._mesh, P())
        sampling = _everything(rows, -(-self._vocab_size // 32))
        with jax.enable_x64(True):
            self._adjusted(logits, sampling, rows)
            style = self._style(sampling.samples, rows)
            chosen = self.made
            for searches in _SEARCHES:
                chosen = choose(logits, style, searches, self._max_samples)
            for count in (0, min(_LEAST_LIKELY, self._vocab_size)):
                likely_tokens(logits, chosen, count)

    def begin(self, logits: Array, sampling: SamplingBatch) -> SampledStep:
        samples = sampling.samples
        with jax.enable_x64(True):
            adjusted = self._adjusted(logits, sampling, len(logits))
            style = self._style(samples, len(logits))
            self.made = choose(adjusted, style, _searches(samples), self._max_samples)
            likely = None
            if (most := int(samples["num_logprobs"].max(initial=-1))) >= 0:
                sizes = sizes_up_to(self._vocab_size, least=_LEAST_LIKELY)
                count = bucket(min(most, self._vocab_size), sizes) if most else 0
                likely = likely_tokens(logits, self.made, count)
        for array in (self.made, *(likely or ())):
            array.copy_to_host_async()
        return _OnItsWay(self.made, likely, samples["num_logprobs"].copy()).result

    def _style(self, samples: NDArray[np.void], rows: int) -> Style[Array]:
        fields = Style(
            temperature=samples["temperature"].astype(np.float64),
            top_p=samples["top_p"].astype(np.float64),
            top_k=samples["top_k"],
            lowest=lowest_kept(samples["min_p"]),
            seed=samples["seed"],
            position=samples["position"],
            choice=samples["choice"],
            target=samples["target"],
        )
        placed: Style[Array] = self._put(Style(*(padded(field, (rows,)) for field in fields)))
        return placed

    def _adjusted(self, logits: Array, sampling: SamplingBatch, rows: int) -> Array:
        """Apply steps 2 and 3."""
        samples = sampling.samples
        logits = self._penalized(logits, sampling, rows)
        biases = (
            owners(sampling.bias_start).astype(np.int32),
            sampling.bias_ids,
            sampling.bias_values,
        )
        for piece in self._pieces(rows, biases):
            logits = add_bias(logits, *piece)
        if words := sampling.allowed.shape[1]:
            logits = mask(logits, self._put(padded(sampling.allowed, (rows, words))))
        if (is_typical := draws_typical(samples)).any():
            typical_p = np.where(is_typical, samples["typical_p"], 1).astype(np.float64)
            temperature = samples["temperature"].astype(np.float64)
            fields = [padded(each, (rows,)) for each in (temperature, typical_p)]
            logits = keep_typical(logits, *self._put(fields))
        return logits

    def _penalized(self, logits: Array, sampling: SamplingBatch, rows: int) -> Array:
        """Apply step 2, by the tokens of the step before too that are fed into histories."""
        samples, owner = sampling.samples, owners(sampling.history_start).astype(np.int32)
        penalties = (
            samples["repetition_penalty"].astype(np.float64),
            samples["frequency_penalty"].astype(np.float64), samples["presence_penalty"],
        )  # fmt: skip
        is_fed = sampling.history_ids < 0
        entries: list[NDArray[Any]] = [owner, sampling.history_ids, sampling.history_counts]
        entries += [each[owner] for each in penalties]
        pieces = self._pieces(rows, [each[~is_fed] for each in entries])
        if not is_fed.any():
            for piece in pieces:
                logits = penalize(logits, History(*piece))
            return logits
        source = np.full(rows, -1, np.int32)
        source[owner[is_fed]] = -1 - sampling.history_ids[is_fed]
        sources, is_known, *by_sample = self._put(
            [source, np.zeros(rows, np.bool_), *(padded(each, (rows,)) for each in penalties)]
        )
        for piece in pieces:
            history, is_known = count_fed(self.made, sources, History(*piece), is_known)
            logits = penalize(logits, history)
        return penalize(logits, fed_history(self.made, sources, is_known, *by_sample))

    def _pieces(self, rows: int, entries: Sequence[NDArray[Any]]) -> Iterator[list[Array]]:
        """Yield entries in pieces of one length. The first array has their samples: padding is of
        one beyond the rows."""
        for start in range(0, len(entries[0]), _PIECE):
            owner, *rest = (padded(each[start : start + _PIECE], (_PIECE,)) for each in entries)
            owner[len(entries[0]) - start :] = rows
            yield self._put([owner, *rest])

    def _put(self, arrays: Any) -> Any:
        return place(arrays, self._mesh, P())


def _searches(samples: NDArray[np.void]) -> Searches:
    """Return the searches that any of the samples needs."""
    drawn = samples[(samples["temperature"] >= GREEDY_TEMPERATURE) & (samples["target"] < 0)]
    return Searches(
        has_top_k=bool((drawn["top_k"] > 0).any()),
        has_top_p=bool((drawn["top_p"] < 1).any()),
        is_drawn=len(drawn) > 0,
    )


def _everything(rows: int, words: int) -> SamplingBatch:
    """Return samples that use all there is."""
    samples = np.zeros(rows, SAMPLE)
    samples["temperature"], samples["typical_p"], samples["repetition_penalty"] = 1, 0.5, 2
    start, one = np.minimum(np.arange(rows + 1, dtype=np.int32), 1), np.zeros(1, np.int32)
    history = np.array([0, -1], np.int32)  # a token, and one that the step before made
    return SamplingBatch(
        samples=samples, history_start=2 * start, history_ids=history, history_counts=history,
        bias_start=start, bias_ids=one, bias_values=np.zeros(1, np.float32),
        allowed=np.ones((rows, words), np.uint32),
    )  # fmt: skip
