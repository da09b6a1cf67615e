"""Learns from measurements how fast nodes and links are, and how late things happen.

All nodes of a class (same model, runner and hardware) share one curve; each node has one factor on
top (a throttled machine, a noisy neighbour). A bias of one node wrecks the tail of routing, and
independent noise per node is worse, so the curve takes from all and the factor moves slowly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from skerry_regions.speeds import LinkSpeed, NodeSpeed, StepSample


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
        self._log = [math.log(max(value, 1e-30)) for value in prior.coefficients]
        self.speed = prior  # the curve as learned so far
        self._prior_variance = self.COMMON_VARIANCE + self.OWN_VARIANCE
        size = range(len(self._log))
        self._covariance = [
            [self._prior_variance if i == j else self.COMMON_VARIANCE for j in size] for i in size
        ]
        self._typical_error = 2.0  # of a logarithm; wide until samples say otherwise

    def predict(self, sample: StepSample) -> float:
        """Return seconds that `sample`'s work should have taken."""
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

    def _parts(self, sample: StepSample) -> list[float]:
        """Return seconds of `sample` by coefficient."""
        pairs = zip(self.speed.coefficients, sample.features(), strict=True)
        return [coefficient * feature for coefficient, feature in pairs]

    def _update(self, gradient: Sequence[float], error: float) -> None:
        """Make one step of an extended Kalman filter: gain = P·g / (g·P·g + noise)."""
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
        self.speed = self.speed.with_coefficients(map(math.exp, self._log))


class _NodeFactor:
    """How much slower one node is than its class: a slow average of log(measured / predicted)."""

    MIN_GAIN = 0.1  # follows a change in about ten samples
    MAX_STEP = math.log(3)  # one outlier moves the average by at most gain times this
    KNOWN = 3  # samples from which on one beyond that has to be seen twice

    def __init__(self) -> None:
        self.log_factor = 0.0
        self.num_samples = 0
        self._was_far = False

    def doubts(self, ratio: float) -> bool:
        """Return whether a measurement is so far off that the next one has to confirm it: a process
        that was stopped in mid-step is as fast as before once it goes on."""
        is_far = abs(math.log(ratio) - self.log_factor) > self.MAX_STEP
        was_far, self._was_far = self._was_far, is_far
        return is_far and not was_far and self.num_samples >= self.KNOWN

    def learn(self, ratio: float) -> None:
        self.num_samples += 1
        gain = max(1 / (self.num_samples + 1), self.MIN_GAIN)
        step = math.log(ratio) - self.log_factor
        self.log_factor += gain * max(-self.MAX_STEP, min(self.MAX_STEP, step))


class SpeedBook:
    """Learned speeds of all nodes. As big as the cluster: remove nodes that are gone.

    A curve learns from as many samples a second as 64 nodes measure, however many there are.
    """

    TEACHERS = 64

    def __init__(self) -> None:
        self._sizes: Counter[str] = Counter()  # nodes, by class
        self._samples: Counter[str] = Counter()  # of a class, so far
        self._curves: dict[str, CurveLearner] = {}
        self._factors: dict[str, _NodeFactor] = {}
        self._class_of: dict[str, str] = {}

    def add_node(self, node: str, speed_class: str, prior: NodeSpeed) -> None:
        """Add a node. `prior` counts only for the first node of its class."""
        self.remove_node(node)
        self._curves.setdefault(speed_class, CurveLearner(prior))
        self._sizes[speed_class] += 1
        self._class_of[node] = speed_class
        self._factors[node] = _NodeFactor()

    def remove_node(self, node: str) -> None:
        """Forget a node; its class keeps what it taught."""
        if (speed_class := self._class_of.pop(node, None)) is not None:
            self._sizes[speed_class] -= 1
            del self._factors[node]

    def learn(self, node: str, sample: StepSample) -> None:
        """Take in a node's measurement. Empty samples and unknown nodes are ignored."""
        speed_class = self._class_of.get(node)
        if speed_class is None or not 0 < sample.seconds < math.inf or sample.steps <= 0:
            return
        curve, factor = self._curves[speed_class], self._factors[node]
        ratio = sample.seconds / curve.predict(sample)
        if factor.doubts(ratio):
            return
        if self._samples[speed_class] % (-(-self._sizes[speed_class] // self.TEACHERS)) == 0:
            curve.learn(sample, factor=math.exp(factor.log_factor))
            ratio = sample.seconds / curve.predict(sample)
        self._samples[speed_class] += 1
        factor.learn(ratio)

    def has_measured(self, node: str) -> bool:
        """Return whether it ever reported how long steps took."""
        return node in self._factors and self._factors[node].num_samples > 0

    def curve(self, node: str) -> NodeSpeed:
        """Return what all nodes of its class share. Raises KeyError for a node that was never
        added."""
        return self._curves[self._class_of[node]].speed

    def speed(self, node: str) -> NodeSpeed:
        """Raises KeyError for a node that was never added."""
        return self.curve(node).scaled(math.exp(self._factors[node].log_factor))


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
        """Learn from a transfer of `num_bytes` that took `seconds` from the request to the last
        byte."""
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
        """Learn from both, in seconds; earlier than predicted counts as in time."""
        late = min(max(observed - predicted, 0.0), self.MAX_SAMPLE)
        before = self.seconds(now)
        self._seconds, self._at = before + self.GAIN * (late - before), now

    def seconds(self, now: float) -> float:
        """Predict the next time."""
        if self._at == -math.inf:
            return self._seconds
        return self._seconds * math.exp2(-max(0.0, now - self._at) / self.HALF_LIFE)


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
