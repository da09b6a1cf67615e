"""How many nodes autoscaled pools have: decided from the demand for them, and written down."""

from __future__ import annotations

from collections.abc import Mapping

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.resources import POOL
from skerry_regions.control.desired.store import Store
from skerry_regions.control.planning.autoscaler import Scale, decide
from skerry_regions.control.planning.demand import demands
from skerry_regions.control.planning.launcher import Observation
from skerry_regions.control.planning.plan import Group

REPLICAS = "replicas"  # name of a decision


class PoolScales:
    """Scales by pool. Decisions outlive the control plane that made them: the store keeps them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._scales: dict[str, Scale] = {}

    @property
    def replicas(self) -> dict[str, int]:
        """Return them by id of the pool, as decided last."""
        return {id: scale.replicas for id, scale in self._scales.items()}

    def decide(
        self, desired: Desired, groups: Mapping[str, Group], seen: Observation, now: float
    ) -> None:
        """Decide on every autoscaled pool; `now` is the reconciler's clock. Writes: on a thread."""
        asked = demands(desired, groups, seen.running.values(), seen.members)
        pools = desired.pools()
        self._scales = {id: scale for id, scale in self._scales.items() if id in asked}
        changed = list[tuple[str, int, Scale]]()
        for id, demand in asked.items():
            before = self._scales.get(id) or Scale(self._kept(id))
            scale = self._scales[id] = decide(pools[id], demand, before, now)
            if scale.replicas != before.replicas:
                changed.append((id, before.replicas, scale))
        if changed:
            with self._store.writing() as writing:
                for id, replicas, scale in changed:
                    if writing.desired.get(POOL, id) is not None:
                        writing.decide(POOL, id, REPLICAS, scale.replicas)
                        message = f"from {replicas} to {scale.replicas}: {scale.reason}"
                        writing.event(POOL, id, "normal", "Scaled", message)

    def _kept(self, pool: str) -> int:
        """Return what an earlier control plane decided."""
        return int(self._store.decisions(REPLICAS).get((POOL.name, pool), 0))
