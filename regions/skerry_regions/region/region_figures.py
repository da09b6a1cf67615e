"""What an edge knows of regions in one number each, for those who choose between regions."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from skerry_regions.region.cost_placer import CostPlacer
from skerry_regions.region.directory import Directory


def queue_seconds(placer: CostPlacer, models: Iterable[str]) -> float:
    """Prefill work that waits at the median node of this region, of the model that waits most."""
    queues = ([load.queue_seconds for _, load in placer.loads_here(model)] for model in models)
    return max((statistics.median(each) for each in queues if each), default=0.0)


def region_rtts(directory: Directory) -> dict[str, float]:
    """Return seconds to each region and back: to the nearest of its members that are followed."""
    members = directory.members
    least: dict[str, float] = {}
    for id_, seconds in directory.rtts().items():
        region = members[id_].region
        least[region] = min(seconds, least.get(region, seconds))
    return least
