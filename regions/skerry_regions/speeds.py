"""How fast nodes and links are, learned from measurements.

The time of an engine step is linear in what the step computes:

    seconds = base + per_token·new + per_pair·attended + per_stream·streams + per_context·context

with `new` prompt tokens, `attended` pairs (new token, token it looks at: attention's quadratic
term), `streams` that decode one token each, and `context` tokens that those streams look at. Sums
over several steps obey the same line, so a node reports sums (`StepSample`), and one small
regression explains prefill nodes, decode nodes and nodes that do both at once.

All nodes of a class (same model, runner and hardware) share one curve; each node has one factor on
top (a throttled machine, a noisy neighbour). A bias of one node wrecks the tail of routing, and
independent noise per node is worse, so the curve takes from everybody and the factor moves slowly.

`NodeSpeed` and `LinkSpeed` are immutable and travel in a `View`; the learners make new ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Amount = Annotated[float, Meta(ge=0.0, le=1e18)]
"""Bounds bind whoever decodes: what a node reports is made on another machine."""


LEAST_CHUNK = 16  # prompt tokens of a step beside streams


def attended_pairs(new_tokens: int, cached_tokens: int) -> float:
    """Pairs (query, key) of causal attention for `new_tokens` after `cached_tokens`."""
    return new_tokens * (cached_tokens + (new_tokens + 1) / 2)


class NodeSpeed(Struct, frozen=True, kw_only=True):
    """Coefficients of a node's step time, in seconds per unit."""

    base: float  # seconds per step
    per_token: float  # seconds per new prompt token
    per_pair: float  # seconds per attended pair
    per_stream: float  # seconds per decoding stream and step
    per_context: float  # seconds per token of decoding context and step
    chunk_tokens: int = 512  # prompt tokens that fit in one step
    gap_seconds: float = 0.03  # that a step may last for a prompt while streams wait for it

    def step_seconds(self, streams: int, context: float) -> float:
        """A step that only decodes: `streams` streams with `context` tokens in all."""
        return self.base + self.per_stream * streams + self.per_context * context

    def room_seconds(self, streams: int, context: float) -> float:
        """What a step may take longer for prompts while streams wait for it: the rule of the
        engine's scheduler (`skerry_core.engine.step_price.StepPrice.chunk`)."""
        pace = self.step_seconds(streams, context)
        return max(self.gap_seconds - pace, pace)

    def work_seconds(
        self, tokens: float, pairs: float, *, streams: int = 0, context: float = 0.0
    ) -> float:
        """Prefill work of `tokens` and `pairs` while `streams` decode in the same steps."""
        prompts = self.per_token * tokens + self.per_pair * pairs
        steps = math.ceil(tokens / self.chunk_tokens)
        if streams:
            by_time = prompts / self.room_seconds(streams, context)
            steps = max(steps, math.ceil(min(by_time, tokens / LEAST_CHUNK)))
        return steps * self.step_seconds(streams, context) + prompts

    def prefill_seconds(
        self, new_tokens: int, cached_tokens: int, *, streams: int = 0, context: float = 0.0
    ) -> float:
        """One prompt: `new_tokens` computed after `cached_tokens`."""
        pairs = attended_pairs(new_tokens, cached_tokens)
        return self.work_seconds(new_tokens, pairs, streams=streams, context=context)

    def prompt_seconds(self, new_tokens: int, cached_tokens: int) -> float:
        """What a prompt adds to the steps that it is computed in."""
        return self.per_token * new_tokens + self.per_pair * attended_pairs(
            new_tokens, cached_tokens
        )

    def scaled(self, factor: float) -> NodeSpeed:
        """The same curve, `factor` times slower."""
        return replace(
            self,
            base=self.base * factor,
            per_token=self.per_token * factor,
            per_pair=self.per_pair * factor,
            per_stream=self.per_stream * factor,
            per_context=self.per_context * factor,
        )


class LinkSpeed(Struct, frozen=True, kw_only=True):
    """A path between two places."""

    rtt: float  # seconds
    bandwidth: float  # bytes per second

    def transfer_seconds(self, num_bytes: float) -> float:
        """From asking to the last byte."""
        return self.rtt + num_bytes / self.bandwidth


class StepSample(Struct, frozen=True, kw_only=True):
    """Sums over one or more engine steps of one node, as measured there."""

    steps: Count
    seconds: Amount
    new_tokens: Count = 0
    attended: Amount = 0.0  # pairs
    streams: Count = 0  # sum over steps of the streams that decoded
    context: Amount = 0.0  # sum over steps of the tokens they looked at

    def features(self) -> tuple[float, float, float, float, float]:
        return (self.steps, self.new_tokens, self.attended, self.streams, self.context)


class CurveLearner:
    """Recursive least squares on logarithms, robust against outliers.

    The state is the logarithm of each coefficient, so coefficients stay positive, and the gain of
    a sample goes to the coefficients by their share of its time. The prior says: the whole curve
    may be wrong by one common factor, and each coefficient a little on its own. So the first
    sample mends the scale, and later ones the shape.
    """

    COMMON_VARIANCE = 1.2  # of log(scale): a prior wrong by 3x is one standard deviation off
    OWN_VARIANCE = 0.2  # of each log(coefficient) beyond that
    NOISE_VARIANCE = 0.02  # of one measurement's logarithm
    FORGETTING = 0.995  # weight kept by old samples per new one: drift is followed in ~200 samples
    OUTLIER = 3.0  # errors beyond this many typical errors count as that many
    MIN_TYPICAL_ERROR = 0.05

    def __init__(self, prior: NodeSpeed) -> None:
        self._prior = prior
        self._log = [math.log(max(value, 1e-30)) for value in _coefficients(prior)]
        self._prior_variance = self.COMMON_VARIANCE + self.OWN_VARIANCE
        size = range(len(self._log))
        self._covariance = [
            [self._prior_variance if i == j else self.COMMON_VARIANCE for j in size] for i in size
        ]
        self._typical_error = 2.0  # of a logarithm; wide until samples say otherwise

    def predict(self, sample: StepSample) -> float:
        """Seconds that `sample`'s work should have taken."""
        return sum(self._parts(sample))

    def learn(self, sample: StepSample, *, factor: float = 1.0) -> None:
        """Take in a measurement of a node that is `factor` times slower than the curve.

        `sample.seconds` must be positive and finite.
        """
        parts = self._parts(sample)
        predicted = sum(parts)
        if not 0 < predicted < math.inf:
            return
        error = math.log(sample.seconds / factor / predicted)
        limit = self.OUTLIER * self._typical_error
        self._typical_error += 0.1 * (min(abs(error), 2 * limit) - self._typical_error)
        self._typical_error = max(self._typical_error, self.MIN_TYPICAL_ERROR)
        shares = [part / predicted for part in parts]
        self._update(shares, max(-limit, min(limit, error)))

    def speed(self) -> NodeSpeed:
        """The curve as learned so far."""
        base, per_token, per_pair, per_stream, per_context = map(math.exp, self._log)
        return replace(
            self._prior,
            base=base,
            per_token=per_token,
            per_pair=per_pair,
            per_stream=per_stream,
            per_context=per_context,
        )

    def _parts(self, sample: StepSample) -> list[float]:
        """Seconds of `sample` by coefficient."""
        return [math.exp(log) * x for log, x in zip(self._log, sample.features(), strict=True)]

    def _update(self, gradient: Sequence[float], error: float) -> None:
        """One step of an extended Kalman filter: gain = P·g / (g·P·g + noise)."""
        size = range(len(self._log))
        pg = [_dot(row, gradient) for row in self._covariance]
        scale = 1.0 / (_dot(pg, gradient) + self.NOISE_VARIANCE)
        for i in size:
            self._log[i] += pg[i] * scale * error
            for j in size:
                self._covariance[i][j] -= pg[i] * pg[j] * scale
        # Forget, but never become less certain than the prior was.
        roots = [
            math.sqrt(max(1.0, min(1 / self.FORGETTING, self._prior_variance / row[i])))
            for i, row in enumerate(self._covariance)
        ]
        for i in size:
            for j in size:
                self._covariance[i][j] *= roots[i] * roots[j]


class _NodeFactor:
    """How much slower one node is than its class: a slow average of log(measured / predicted)."""

    MIN_GAIN = 0.1  # follows a change in about ten samples
    MAX_STEP = math.log(3)  # one outlier moves the average by at most gain times this

    def __init__(self) -> None:
        self.log_factor = 0.0
        self.num_samples = 0

    def learn(self, ratio: float) -> None:
        self.num_samples += 1
        gain = max(1 / (self.num_samples + 1), self.MIN_GAIN)
        step = math.log(ratio) - self.log_factor
        self.log_factor += gain * max(-self.MAX_STEP, min(self.MAX_STEP, step))


class SpeedBook:
    """Learned speeds of all nodes. As big as the cluster: remove nodes that are gone."""

    def __init__(self) -> None:
        self._curves: dict[str, CurveLearner] = {}
        self._factors: dict[str, _NodeFactor] = {}
        self._class_of: dict[str, str] = {}

    def add_node(self, node: str, speed_class: str, prior: NodeSpeed) -> None:
        """Know a node. `prior` counts only for the first node of its class."""
        self._curves.setdefault(speed_class, CurveLearner(prior))
        self._class_of[node] = speed_class
        self._factors[node] = _NodeFactor()

    def remove_node(self, node: str) -> None:
        """Forget a node; its class keeps what it taught."""
        self._class_of.pop(node, None)
        self._factors.pop(node, None)

    def learn(self, node: str, sample: StepSample) -> None:
        """Take in a node's measurement. Empty samples and unknown nodes are ignored."""
        speed_class = self._class_of.get(node)
        if speed_class is None or not 0 < sample.seconds < math.inf or sample.steps <= 0:
            return
        curve, factor = self._curves[speed_class], self._factors[node]
        curve.learn(sample, factor=math.exp(factor.log_factor))
        factor.learn(sample.seconds / curve.predict(sample))

    def has_measured(self, node: str) -> bool:
        """Whether it ever told how long steps took."""
        return node in self._factors and self._factors[node].num_samples > 0

    def speed(self, node: str) -> NodeSpeed:
        """Raises KeyError for a node that was never added."""
        factor = math.exp(self._factors[node].log_factor)
        return self._curves[self._class_of[node]].speed().scaled(factor)


class LinkLearner:
    """RTT and bandwidth of one link, starting from a prior such as distance.

    RTT follows probes by an EWMA after Jacobson (RFC 6298: gain 1/8); bandwidth averages seconds
    per byte of transfers, weighted by size, so that small ones, mostly latency, say little.
    """

    RTT_GAIN = 1 / 8
    MAX_RATIO = 4.0  # a sample beyond 4x of the estimate counts as 4x
    PRIOR_BYTES = 1 << 20  # the prior weighs as much as one MiB sent
    MEMORY_BYTES = 1 << 28  # older transfers fade after 256 MiB

    def __init__(self, prior: LinkSpeed) -> None:
        self._rtt = prior.rtt
        self._probes = 0
        self._seconds_per_byte = 1 / prior.bandwidth
        self._weight = float(self.PRIOR_BYTES)

    def learn_rtt(self, seconds: float) -> None:
        if not 0 < seconds < math.inf:
            return
        self._probes += 1
        if self._probes == 1:  # a measurement beats a distance
            self._rtt = seconds
            return
        gain = max(1 / self._probes, self.RTT_GAIN)
        self._rtt += gain * (min(seconds, self.MAX_RATIO * self._rtt) - self._rtt)

    def learn_transfer(self, num_bytes: int, seconds: float) -> None:
        """A transfer of `num_bytes` that took `seconds` from asking to the last byte."""
        on_the_wire = seconds - self._rtt
        if num_bytes <= 0 or not 0 < on_the_wire < math.inf:
            return
        measured = on_the_wire / num_bytes
        measured = min(measured, self.MAX_RATIO * self._seconds_per_byte)
        self._weight = min(self._weight + num_bytes, self.MEMORY_BYTES)
        share = min(num_bytes / self._weight, 1.0)
        self._seconds_per_byte += share * (measured - self._seconds_per_byte)

    def speed(self) -> LinkSpeed:
        return LinkSpeed(rtt=self._rtt, bandwidth=1 / self._seconds_per_byte)


class LagLearner:
    """How much later something happens than predicted: an average that fades.

    It fades, so that whoever was left alone for being late is tried again.
    """

    GAIN = 1 / 8
    MAX_SAMPLE = 0.5  # seconds; what takes longer has other causes
    HALF_LIFE = 60.0  # seconds

    def __init__(self, prior: float) -> None:
        self._seconds = prior
        self._at = -math.inf

    def learn(self, observed: float, predicted: float, now: float) -> None:
        """Both in seconds; earlier than predicted counts as in time."""
        late = min(max(observed - predicted, 0.0), self.MAX_SAMPLE)
        before = self.seconds(now)
        self._seconds, self._at = before + self.GAIN * (late - before), now

    def seconds(self, now: float) -> float:
        """Expected of the next time."""
        if self._at == -math.inf:
            return self._seconds
        return self._seconds * math.exp2(-max(0.0, now - self._at) / self.HALF_LIFE)


def _coefficients(speed: NodeSpeed) -> tuple[float, float, float, float, float]:
    """In the order of `StepSample.features`."""
    return (speed.base, speed.per_token, speed.per_pair, speed.per_stream, speed.per_context)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
