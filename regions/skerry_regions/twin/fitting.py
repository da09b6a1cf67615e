"""Calibrates a scenario's pools from counters that nodes keep: what explains their steps' time.

A node counts its steps, the seconds that they took, and sums of what explains these (`StepSample`);
differences of two readings are one row. Coefficients are those of least squares without negative
ones (Lawson and Hanson 1974), weighted by 1/seconds, so that relative errors count. What lies
between two steps of a node that has work (schedule, inputs, sampling) is added to each step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from skerry_regions.routing.fast.compiled import Floats
from skerry_regions.speeds import COEFFICIENTS, StepSample
from skerry_regions.twin.scenario import Law

LEAST_ROWS = 20
ILL = 1e4  # condition number from which on prompts are too short to show what a pair costs
BUSY = 0.7  # share of a reading from which on what it lacks is taken for gaps between steps
PER_PAIR = 2  # place in `StepSample.features`
BOOTSTRAPS = 200


class FitError(ValueError):
    """Too little was measured; the message says what to do."""


class StepDifference(Struct, frozen=True, kw_only=True):
    """What one node did between two looks."""

    node: str
    seconds: float  # between them
    sample: StepSample
    worked: bool  # at both looks it had a request


class FittedLaw(Struct, frozen=True, kw_only=True):
    """How long steps of a pool take."""

    law: Law
    factors: dict[str, float]  # how much slower each node is than the pool
    noise: float  # sigma of a row's logarithm
    gap: float  # seconds between steps, which are in `law.base`
    errors: tuple[float, ...]  # standard error of each coefficient, by bootstrap
    rows: int
    has_pairs: bool  # whether prompts were long enough to show what a pair costs


def fit(readings: Sequence[StepDifference], *, chunk_tokens: int, gap_seconds: float) -> FittedLaw:
    """Return the law of a pool of equal nodes. Raises `FitError`."""
    rows = [each for each in readings if each.sample.steps > 0 and each.sample.seconds > 0]
    if len(rows) < LEAST_ROWS:
        raise FitError(
            f"{len(rows)} readings in which nodes computed: at least {LEAST_ROWS} are needed;"
            " ask more of the platform, or look longer (--seconds)"
        )
    features = np.array([each.sample.features() for each in rows])
    seconds = np.array([each.sample.seconds for each in rows])
    scaled = features / seconds[:, None]
    norms = np.linalg.norm(scaled, axis=0)
    used = norms > 0
    condition = np.linalg.cond(scaled[:, used] / norms[used])
    has_pairs = bool(used[PER_PAIR] and condition <= ILL)
    used[PER_PAIR] = has_pairs
    found = nonnegative(scaled, np.ones(len(rows)), used)
    predicted = features @ found
    factors = {
        node: float(seconds[mine].sum() / predicted[mine].sum())
        for node in sorted({each.node for each in rows})
        if (mine := np.array([each.node == node for each in rows])).any()
    }
    own = predicted * np.array([factors[each.node] for each in rows])
    rng = np.random.default_rng(1)
    draws = [
        nonnegative(scaled[drawn], np.ones(len(rows)), used)
        for drawn in rng.integers(0, len(rows), (BOOTSTRAPS, len(rows)))
    ]
    gap = _gap(rows)
    base, *others = found.tolist()
    coefficients = dict(zip(COEFFICIENTS, (base + gap, *others), strict=True))
    return FittedLaw(
        law=Law(**coefficients, chunk_tokens=chunk_tokens, gap_seconds=gap_seconds),
        factors=factors,
        noise=_sigma(seconds / own, features[:, 0]),
        gap=gap,
        errors=tuple(np.std(draws, axis=0, ddof=1).tolist()),
        rows=len(rows),
        has_pairs=has_pairs,
    )


def nonnegative(matrix: Floats, target: Floats, used: np.ndarray) -> Floats:
    """Return what solves `matrix @ x = target` best by squares with no x below 0, and 0 where not
    `used`. Exact: of few columns each subset is solved."""
    columns = np.flatnonzero(used)
    best, least = np.zeros(matrix.shape[1]), math.inf
    for size in range(1, len(columns) + 1):
        for chosen in itertools.combinations(columns, size):
            part = matrix[:, list(chosen)]
            norms = np.linalg.norm(part, axis=0)
            found = np.linalg.lstsq(part / norms, target, rcond=None)[0] / norms
            error = float(((part @ found - target) ** 2).sum())
            if (found >= 0).all() and error < least:
                best, least = np.zeros(matrix.shape[1]), error
                best[list(chosen)] = found
    return best


def readings(
    looks: Sequence[tuple[float, Mapping[str, tuple[StepSample, int]]]],
) -> list[StepDifference]:
    """Return differences of looks one after the other: a time, and by node the sums so far and its
    requests. A node that started again between two is left out there."""
    found = []
    for (began, before), (ended, after) in itertools.pairwise(looks):
        for node in before.keys() & after.keys():
            (old, had), (new, has) = before[node], after[node]
            change = [b - a for a, b in zip(old.features(), new.features(), strict=True)]
            seconds = new.seconds - old.seconds
            if min(*change, seconds) < 0:
                continue
            steps, tokens, pairs, streams, context = change
            sample = StepSample(
                steps=int(steps), seconds=seconds, new_tokens=int(tokens), attended=pairs,
                streams=int(streams), context=context,
            )  # fmt: skip
            found.append(
                StepDifference(
                    node=node, seconds=ended - began, sample=sample, worked=had > 0 and has > 0
                )
            )
    return found


def _gap(rows: Sequence[StepDifference]) -> float:
    """Return seconds between two steps of a node that has work: the lowest tenth of readings in
    which it was busy nearly all the time (the others had idle time, too); 0 where there is none."""
    found = [
        max(each.seconds - each.sample.seconds, 0.0) / each.sample.steps
        for each in rows
        if each.worked and each.sample.seconds >= BUSY * each.seconds
    ]
    return float(np.quantile(found, 0.1)) if found else 0.0


def _sigma(ratios: Floats, steps: Floats) -> float:
    """Return the sigma of one step's logarithm, as steps of a row were independent."""
    errors = np.log(ratios) * np.sqrt(steps)
    return float(min(1.4826 * np.median(np.abs(errors - np.median(errors))), 2.0))
