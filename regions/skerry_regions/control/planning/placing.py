"""Which host a node is started on. Pure.

Of those with room the one with the fewest nodes of its pool, so that the end of one machine takes
the fewest of them; then the one that has the most left.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from skerry_regions.control.planning.launcher import LaunchFailed, NodeSettings
from skerry_regions.process.launch_folder import Slot

MOST_SET_NAME = 52  # a label of 63, less what Kubernetes makes of it for a revision


def pod_set_name(pool: str) -> str:
    """Return the name of what Kubernetes keeps a pool's pods by; of a long one the beginning."""
    name = f"skerry-{pool}"
    if len(name) <= MOST_SET_NAME:
        return name
    tag = hashlib.blake2b(pool.encode(), digest_size=4).hexdigest()
    return f"{name[: MOST_SET_NAME - len(tag) - 1].rstrip('-')}-{tag}"


def pod_name(id: str) -> str:
    """Return the name of the pod that a node runs on, where it runs on one."""
    pool, _, number = id.rpartition("-")
    return f"{pod_set_name(pool)}-{number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRoom:
    """One host, and what it has left."""

    id: str
    cpus: int
    memory: int  # bytes
    gpus: tuple[int, ...]
    num_same: int  # nodes of the pool that is placed
    of_pool: str = ""  # the only one that it is for

    @classmethod
    def of(
        cls, id: str, offers: Slot, taken: Iterable[Slot], num_same: int, *, of_pool: str = ""
    ) -> HostRoom:
        """Return what is left of an offer, below nothing where it was cut since."""
        slots = [*taken]
        used = {gpu for slot in slots for gpu in slot.gpus}
        return cls(
            id=id,
            cpus=offers.cpus - sum(slot.cpus for slot in slots),
            memory=offers.memory - sum(slot.memory for slot in slots),
            gpus=tuple(gpu for gpu in offers.gpus if gpu not in used),
            num_same=num_same,
            of_pool=of_pool,
        )

    def takes(self, settings: NodeSettings) -> bool:
        return (
            (settings.threads or 1) <= self.cpus
            and (not settings.memory or settings.memory <= self.memory)
            and settings.gpus <= len(self.gpus)
        )


def place(settings: NodeSettings, hosts: Iterable[HostRoom]) -> tuple[str, Slot]:
    """Return the host of a node, and what it gets there. Raises LaunchFailed."""
    found = [*hosts]
    fitting = [host for host in found if host.takes(settings)]
    if not fitting:
        raise LaunchFailed(_no_room(settings, found))
    best = min(fitting, key=lambda each: (each.num_same, -each.cpus, -each.memory, each.id))
    slot = Slot(
        cpus=settings.threads or 1,
        memory=settings.memory,
        gpus=best.gpus[: settings.gpus],
    )
    return best.id, slot


def _no_room(settings: NodeSettings, hosts: list[HostRoom]) -> str:
    if not hosts and settings.launcher == "kubernetes":
        return "its pod is not there: pools on pods need `skerry control --kubernetes`"
    if not hosts:
        return f"no host of {settings.region} is there: run `skerry host --join` on a machine"
    needs = _written(settings.threads or 1, settings.memory, settings.gpus)
    left = max(hosts, key=lambda each: (each.cpus, each.memory, each.id))
    free = _written(left.cpus, left.memory, len(left.gpus))
    return (
        f"none of {len(hosts)} hosts of {settings.region} has room for {needs}; "
        f"{left.id} has {free} left"
    )


def _written(cpus: int, memory: int, gpus: int) -> str:
    return f"{cpus} CPUs, {memory / (1 << 30):.1f} GiB, {gpus} GPUs"
