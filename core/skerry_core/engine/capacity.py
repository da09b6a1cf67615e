"""Which requests an engine takes: those that can be served at all, as many as it has places."""

from __future__ import annotations

import math
from collections.abc import Callable
from threading import Lock

import numpy as np

from skerry_core.batch import Int32, Int64
from skerry_core.blocks import blocks_for
from skerry_core.config import EngineConfig, ModelConfig
from skerry_core.engine.sequence import Sequence
from skerry_core.request import EngineOverloaded, RequestRejected, RequestTooLong
from skerry_core.sampling import PARAMETERS, SamplingParams

MAX_CACHE_KEY = 64  # bytes, BLAKE2b's limit
MAX_LOGPROBS = 128  # alternatives per token; bounds what a step carries back
MIN_RETRY, MAX_RETRY = 1.0, 60.0  # seconds


def check_sequence(sequence: Sequence, model: ModelConfig, num_blocks: int) -> None:
    """Raise RequestRejected, saying what is wrong, unless an idle engine could serve it."""
    request, sampling = sequence.request, sequence.sampling
    if not request.prompt_ids:
        raise RequestRejected("the prompt has no tokens")
    if len(request.cache_key) > MAX_CACHE_KEY:
        raise RequestRejected(f"cache_key has more than {MAX_CACHE_KEY} bytes")
    _check_sampling(sampling)
    _check_logprobs("prompt_logprobs", request.prompt_logprobs, model)
    _check_logprobs("logprobs", sampling.logprobs, model)
    tokens = sequence.tokens
    _check_ids("prompt_ids", tokens[: sequence.prompt_tokens], model)
    _check_ids("output_ids", tokens[sequence.prompt_tokens :], model)
    _check_ids("stop_token_ids", np.array(sampling.stop_token_ids, np.int64), model)
    if sequence.budget is not None:
        _check_ids("end_ids", np.array(sequence.budget.end_ids, np.int64), model)
    biased = [token_id for token_id, _ in sampling.logit_bias]
    _check_ids("logit_bias", np.array(biased, np.int64), model)
    _check_size(sequence, model, num_blocks)


def _check_size(sequence: Sequence, model: ModelConfig, num_blocks: int) -> None:
    prompt, output = sequence.prompt_tokens, sequence.sampling.max_tokens
    tokens = f"{prompt} prompt tokens and max_tokens {output}"
    if sequence.output_tokens > output:
        raise RequestRejected(f"{sequence.output_tokens} output_ids exceed max_tokens {output}")
    if prompt + output > model.max_context:
        raise RequestTooLong(f"{tokens} exceed the model's context of {model.max_context} tokens")
    needed = blocks_for(prompt + output - 1)  # the last token is not run
    if needed > num_blocks:
        raise RequestTooLong(
            f"{tokens} need {needed} blocks of KV memory, this engine has {num_blocks}"
        )


def _check_sampling(sampling: SamplingParams) -> None:
    for name, parameter in PARAMETERS.items():
        value = getattr(sampling, name)
        _check_range(name, value, parameter.least <= value <= parameter.most)
    _check_range("seed", sampling.seed, 0 <= sampling.seed < 1 << 64)
    _check_range("choice", sampling.choice, 0 <= sampling.choice < 1 << 31)
    _check_range("max_tokens", sampling.max_tokens, sampling.max_tokens >= 1)
    _check_range("min_tokens", sampling.min_tokens, sampling.min_tokens >= 0)
    are_finite = all(math.isfinite(bias) for _, bias in sampling.logit_bias)
    _check_range("logit_bias", sampling.logit_bias, are_finite)


def _check_range(name: str, value: object, is_valid: bool) -> None:
    if not is_valid:
        raise RequestRejected(f"{name} is out of range: {value!r}")


def _check_logprobs(name: str, k: int | None, model: ModelConfig) -> None:
    most = min(MAX_LOGPROBS, model.vocab_size)
    if k is not None and not 0 <= k <= most:
        raise RequestRejected(f"{name} must be between 0 and {most}, got {k}")


def _check_ids(name: str, ids: Int32 | Int64, model: ModelConfig) -> None:
    wrong = ids[(ids < 0) | (ids >= model.vocab_size)]
    if len(wrong):
        raise RequestRejected(
            f"{name} contains token {wrong[0]}, outside the vocabulary of {model.vocab_size}"
        )


class Capacity:
    """The requests that live in an engine, waiting or running: at most as many as it has places.

    An eighth of the waiting places is kept for tenants that have no request, so that one tenant's
    flood does not shut out the others. May be called from any thread.
    """

    def __init__(self, config: EngineConfig, clock: Callable[[], float]) -> None:
        self._places = config.max_running + config.max_waiting
        self._running_places = config.max_running
        self._reserved = config.max_waiting // 8
        self._clock = clock
        self._lock = Lock()
        self._tenants: dict[str, str] = {}  # by request id
        self._requests: dict[str, int] = {}  # per tenant
        self._released_at: float | None = None
        self._interval = 0.0  # seconds between releases, smoothed

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._tenants

    def admit(self, request_id: str, tenant: str, *, reject_if_busy: bool = False) -> None:
        """Take a place; with `reject_if_busy` one that need not be waited for.

        Raises EngineOverloaded, or RequestRejected when the id is taken.
        """
        with self._lock:
            if request_id in self._tenants:
                raise RequestRejected(f"request id {request_id!r} is in use")
            if reject_if_busy and len(self._tenants) >= self._running_places:
                message = f"all {self._running_places} places to run are taken"
                raise EngineOverloaded(message, self._retry_after())
            free = self._places - len(self._tenants)
            if free <= (self._reserved if tenant in self._requests else 0):
                message = f"all places are taken: {len(self._tenants)} requests"
                raise EngineOverloaded(message, self._retry_after())
            self._tenants[request_id] = tenant
            self._requests[tenant] = self._requests.get(tenant, 0) + 1

    def release(self, request_id: str) -> None:
        """Give a place back."""
        now = self._clock()
        with self._lock:
            tenant = self._tenants.pop(request_id)
            self._requests[tenant] -= 1
            if not self._requests[tenant]:
                del self._requests[tenant]
            if self._released_at is not None:
                self._interval += 0.1 * (now - self._released_at - self._interval)
            self._released_at = now

    def _retry_after(self) -> float:
        """Estimate the seconds until an eighth of the places is free, at the pace of late."""
        return min(MAX_RETRY, max(MIN_RETRY, self._interval * self._places / 8))
