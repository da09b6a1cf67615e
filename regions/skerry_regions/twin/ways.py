"""The ways between a scenario's regions, as matrices."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skerry_regions.routing.fast.compiled import Floats
from skerry_regions.twin.scenario import Scenario

MSS = 1460  # bytes of a TCP segment
UNKNOWN_RTT, UNKNOWN_BANDWIDTH = 0.150, 2.5e7  # as `view.UNKNOWN_LINK`


@dataclass(frozen=True, slots=True)
class Ways:
    """Between regions: seconds, bytes per second, share of packets lost, price of 10⁹ bytes."""

    rtts: Floats
    bandwidths: Floats
    loss: Floats
    prices: Floats


def ways_of(scenario: Scenario, base: Path) -> Ways:
    """Return the matrices of a scenario. Raises ValueError for a matrix that lacks a region.

    Loss bounds what one connection carries: Mathis et al. 1997, 1.22 · MSS / (RTT · √loss).
    """
    count = len(scenario.regions)
    rtts = np.full((count, count), UNKNOWN_RTT)
    bandwidths = np.full((count, count), UNKNOWN_BANDWIDTH)
    loss, prices = np.zeros((count, count)), np.zeros((count, count))
    if scenario.rtt_matrix is not None:
        _read_matrix(base / scenario.rtt_matrix, scenario.names, rtts)
    places = {name: number for number, name in enumerate(scenario.names)}
    for link in scenario.links:
        a, b = (places[name] for name in link.between)
        for pair in ((a, b), (b, a)):
            rtts[pair], bandwidths[pair] = link.rtt, link.bandwidth
            loss[pair], prices[pair] = link.loss, link.gigabyte
    with np.errstate(divide="ignore"):
        ceiling = 1.22 * MSS / (np.maximum(rtts, 1e-6) * np.sqrt(loss))
    bandwidths = np.minimum(bandwidths, ceiling)
    for number, region in enumerate(scenario.regions):
        rtts[number, number], bandwidths[number, number] = region.rtt, region.bandwidth
        loss[number, number] = 0.0
    return Ways(rtts, bandwidths, loss, prices)


def _read_matrix(path: Path, names: list[str], rtts: Floats) -> None:
    """Fill in what a file says of these regions, in ms; its first column names the row."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = {row[next(iter(row))]: row for row in csv.DictReader(file)}
    for a, source in enumerate(names):
        for b, target in enumerate(names):
            if a == b:
                continue
            try:
                rtts[a, b] = float(rows[source][target]) / 1e3
            except (KeyError, ValueError):
                raise ValueError(f"{path}: no round trip from {source} to {target}") from None
