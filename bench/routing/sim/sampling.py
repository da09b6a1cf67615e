"""What a whole came to, from a simple random sample of its cells, with a 95 % interval.

Cells are clusters: each is run whole, so that a figure of the sample has no bias but that of its
ratios, and its spread between cells is all that an interval needs, whatever goes on within one.
Cochran, Sampling Techniques (1977): the variance of a product of totals and of their inverses is
that of its logarithm, linearised (chapter 6), with the finite population's correction (2.6) and
Student's t of as many degrees of freedom as there are cells but one. Of a quantile it is the share
beyond it that has the interval (Woodruff, JASA 47, 1952).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

import numpy as np

from skerry_regions.routing.fast.compiled import Floats

Unit = Mapping[str, float]  # sums of one cell
NORMAL = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Estimate:
    """A figure of the whole, and its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def covers(self, truth: float) -> bool:
        return self.low <= truth <= self.high


def estimate(
    units: Sequence[Unit], cells: int, above: Sequence[str], below: Sequence[str] = ()
) -> Estimate:
    """The product of some totals by that of others: `above` ("ttft",) and `below` ("requests",) are
    a mean per request. Of `cells` in all at least two are given."""
    count = len(units)
    means = {name: fmean(unit[name] for unit in units) for name in {*above, *below}}
    value = math.prod(cells * means[name] for name in above)
    value /= math.prod(cells * means[name] for name in below)
    if not value:
        return Estimate(0.0, 0.0, 0.0)
    shares = [
        math.fsum(unit[name] / means[name] for name in above)
        - math.fsum(unit[name] / means[name] for name in below)
        for unit in units
    ]
    left = 1 - count / cells
    half = student(count - 1) * math.sqrt(left * variance(shares) / count)
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def quantile(histograms: Sequence[Floats], cells: int, share: float) -> Estimate:
    """Places in histograms, one of each cell: that of a quantile of the whole, between buckets."""
    edges = np.arange(len(histograms[0]) + 1)
    running = [np.concatenate([[0.0], np.cumsum(each)]) for each in histograms]
    whole = np.sum(running, axis=0)
    place = float(np.interp(share * whole[-1], whole, edges))
    beyond = [
        {"beyond": each[-1] - float(np.interp(place, edges, each)), "all": each[-1]}
        for each in running
    ]
    found = estimate(beyond, cells, ["beyond"], ["all"])
    low, high = (
        float(np.interp((1 - end) * whole[-1], whole, edges)) for end in (found.high, found.low)
    )
    return Estimate(place, low, high)


def student(freedom: float) -> float:
    """Student's t at 97.5 %, by Cornish and Fisher's expansion: within 1 % from 3 degrees on."""
    z, v = NORMAL, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
