"""Resources that were deleted are there until nothing of them runs any more."""

from __future__ import annotations

from collections.abc import Collection

from skerry_regions.control.desired.desired import Desired
from skerry_regions.control.desired.resources import (
    DEPLOYMENT,
    EDGE_NODE,
    POOL,
    REGION,
    ResourceKind,
)
from skerry_regions.control.desired.store import Store


def remove_ended(store: Store, desired: Desired, owners: Collection[str]) -> None:
    """Remove what was deleted and has ended. `owners` are those of processes that run, on all
    machines. Blocks."""
    for kind in (DEPLOYMENT, EDGE_NODE, POOL, REGION):
        for record in desired.of(kind):
            if record.deleting and not _is_in_use(store, kind, record.id, owners):
                with store.writing() as writing:
                    if writing.desired.is_deleting(kind, record.id):  # and not wanted again
                        writing.remove(kind, record.id)


def _is_in_use(store: Store, kind: ResourceKind, id: str, owners: Collection[str]) -> bool:
    if kind is not REGION:
        return id in owners
    desired = store.desired  # without what was removed a moment ago
    regions = {spec.region for spec in desired.pools().values()}
    regions |= {spec.region for spec in desired.edge_nodes().values()}
    return id in regions
