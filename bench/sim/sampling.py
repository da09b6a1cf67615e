"""What a whole came to, from a sample of its cells in each stratum, with a 95 % interval.

Cochran, Sampling Techniques (1977): totals are stratified sums (chapter 5); the variance of a
product of totals and of their inverses is that of its logarithm, linearised (chapter 6), with the
finite population's correction; the degrees of freedom are Satterthwaite's (section 5.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, variance

import numpy as np

from skerry_regions.routing.fast.compiled import Floats

Unit = Mapping[str, float]  # sums of one cell in one stratum
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
    strata: Sequence[Sequence[Unit]], cells: int, above: Sequence[str], below: Sequence[str] = ()
) -> Estimate:
    """The product of some totals by that of others: `above` ("ttft",) and `below` ("requests",) are
    a mean per request. Each stratum has `cells` in all, of which at least two are given."""
    totals = {
        name: math.fsum(cells / len(units) * math.fsum(unit[name] for unit in units)
                        for units in strata)
        for name in {*above, *below}
    }  # fmt: skip
    value = math.prod(totals[name] for name in above) / math.prod(totals[name] for name in below)
    parts = []
    for units in strata:
        shares = [
            math.fsum(unit[name] / totals[name] for name in above)
            - math.fsum(unit[name] / totals[name] for name in below)
            for unit in units
        ]
        left = 1 - len(units) / cells
        parts.append((cells**2 * left * variance(shares) / len(units), len(units) - 1))
    whole = math.fsum(part for part, _ in parts)
    if whole == 0:
        return Estimate(value, value, value)
    freedom = whole**2 / math.fsum(part**2 / degrees for part, degrees in parts)
    half = student(freedom) * math.sqrt(whole)
    return Estimate(value, value * math.exp(-half), value * math.exp(half))


def quantile(
    strata: Sequence[Sequence[Floats]], share: float, draws: int = 400, seed: int = 1
) -> tuple[float, float, float]:
    """Buckets of histograms, one of each cell: the one of a quantile of the whole, and the ends of
    its interval by bootstrap over the cells of each stratum."""
    rng = np.random.default_rng(seed)
    found = []
    for draw in range(draws + 1):
        whole = np.zeros_like(strata[0][0])
        for cells in strata:
            taken = rng.integers(len(cells), size=len(cells)) if draw else range(len(cells))
            whole += sum((cells[each] for each in taken), np.zeros_like(whole)) / len(cells)
        found.append(float(np.searchsorted(np.cumsum(whole), share * whole.sum())))
    ends = np.quantile(found[1:], (0.025, 0.975))
    return found[0], float(ends[0]), float(ends[1])


def student(freedom: float) -> float:
    """Student's t at 97.5 %, by Cornish and Fisher's expansion: within 1 % from 4 degrees on."""
    z, v = NORMAL, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / v + second / v**2 + third / v**3
