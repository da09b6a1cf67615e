"""The launcher `kubernetes`: a pool's nodes on pods, of which Kubernetes keeps as many as needed.

    start fra-decode-3 ─▶ StatefulSet skerry-fra-decode: replicas 4 ─▶ pod skerry-fra-decode-3
                                                                          │ joins as a host
    node fra-decode-3  ◀──────────────── ordered, as to any host ◀────────┘

A pod is a host (`Hosts`) of one node, by its number: what nodes are, who has a name, drains, and
what a pod does that is evicted are as on any host. A pod is replaced when its node has drained and
its template has changed, and there are no more than up to the highest number in use. Where a number
below is free again, the highest node moves down, so that its pod can go.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from random import Random

from skerry_regions.control.kubernetes.api_server import ApiError
from skerry_regions.control.kubernetes.pod_sets import PodSets, PodsWanted
from skerry_regions.control.machines.hosts import Hosts
from skerry_regions.control.machines.joined import Wanted
from skerry_regions.control.planning.launcher import (
    Ended,
    Launch,
    LaunchFailed,
    NodeSettings,
    Observation,
    RunningProcess,
    never_started,
    starting,
)
from skerry_regions.control.planning.placing import pod_name
from skerry_regions.control.planning.plan import Group
from skerry_regions.process.backoff import Backoff, RestartPolicy
from skerry_regions.process.local_launcher import Deposed
from skerry_regions.process.pauses import until_set

LOOK_SECONDS = 5.0  # between two looks at the cluster
SHRINK_SECONDS = 60.0  # that fewer pods must do, before some go: a node may only be away
TROUBLE_SECONDS = 20.0  # that a pod may take to find a machine, before its node fails
AGAIN = RestartPolicy(first=0.5)  # after a failure

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WaitingLaunch:
    """A node whose pod is not there yet. `since` is the clock's."""

    launch: Launch
    since: float


class PodLauncher:
    """See `Launcher`: nodes of pools on pods, and all others on other hosts."""

    def __init__(
        self,
        hosts: Hosts,
        sets: PodSets,
        wanted: Callable[[], Wanted | None],
        *,
        clock: Callable[[], float],
        changed: Callable[[], None],
        rng: Random | None = None,
    ) -> None:
        """`clock` is monotonic, in seconds; `changed` is called when there is something to see."""
        self._hosts = hosts
        self._sets = sets
        self._wanted = wanted
        self._clock = clock
        self._changed = changed
        self._backoff = Backoff(AGAIN, rng or Random())
        self._waiting: dict[str, WaitingLaunch] = {}
        self._ended: list[Ended] = []
        self._running: Mapping[str, RunningProcess] = {}
        self._needed: dict[str, list[tuple[float, int]]] = {}  # of each pool: since when, how many
        self._outdated: frozenset[str] = frozenset()  # pods that are to be replaced
        self._began = clock()
        self._wake = asyncio.Event()

    # --- the launcher ----------------------------------------------------------------------------

    async def list(self) -> Observation:
        for id, waiting in [*self._waiting.items()]:
            if await self._is_placed(waiting.launch):
                del self._waiting[id]
        seen = await self._hosts.list()
        self._running = seen.running
        missing = {
            id: starting(waiting.launch, self._clock() - waiting.since)
            for id, waiting in self._waiting.items()
            if id not in seen.running
        }
        running = {id: self._judged(each) for id, each in seen.running.items()} | missing
        for group in self._groups().values():
            if (last := _to_move_down(group, running.values())) is not None:
                running[last.id] = dataclasses.replace(last, fingerprint="")
        ended, self._ended = (*seen.ended, *self._ended), []
        return Observation(running, ended)

    async def start(self, launch: Launch) -> int:
        if is_on_pod(launch.settings) and not await self._is_placed(launch):
            self._waiting[launch.id] = WaitingLaunch(launch, self._clock())
            self._wake.set()
        elif not is_on_pod(launch.settings):
            return await self._hosts.start(launch)
        return 0

    async def drain(self, id: str, *, patiently: bool) -> None:
        if self._waiting.pop(id, None) is None:
            await self._hosts.drain(id, patiently=patiently)

    async def stop(self, id: str) -> None:
        if self._waiting.pop(id, None) is None:
            await self._hosts.stop(id)

    def _judged(self, process: RunningProcess) -> RunningProcess:
        """Return a node on a pod that is to be replaced as made of nothing that is wanted."""
        if pod_name(process.id) in self._outdated:
            return dataclasses.replace(process, fingerprint="")
        return process

    async def _is_placed(self, launch: Launch) -> bool:
        if pod_name(launch.id) in self._outdated:
            return False
        try:
            await self._hosts.start(launch)
        except LaunchFailed:  # its pod is not there, or has not what it needs, until it is replaced
            return False
        return True

    # --- the cluster -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the cluster's StatefulSets as nodes need them, without an end."""
        while True:
            self._wake.clear()
            try:
                if self._wanted() is not None:  # else the desired state is not known yet
                    await self.look()
                    self._backoff.failures = 0
            except (ApiError, Deposed) as error:
                await asyncio.sleep(self._failed(error))
                continue
            await until_set(self._wake, LOOK_SECONDS)

    async def look(self) -> None:
        """Look once, and change what is not as it should be. Raises ApiError or Deposed."""
        wanted = self._wanted()
        assert wanted is not None
        pools = wanted.desired.pools().items()
        seen = await self._sets.keep(
            self._pods_wanted(),
            known={id for id, pool in pools if pool.launcher == "kubernetes"},
            busy={pod_name(id) for id in self._running if id not in self._waiting},
            heard=self._hosts.hostnames(),
        )
        self._outdated = seen.outdated
        now = self._clock()
        for id, waiting in [*self._waiting.items()]:
            trouble = seen.troubles.get(pod_name(id))
            if trouble and now - waiting.since > TROUBLE_SECONDS:
                self._fail(waiting.launch, f"its pod {pod_name(id)} does not start: {trouble}")

    def _pods_wanted(self) -> dict[str, PodsWanted]:
        found = dict[str, PodsWanted]()
        may_shrink = self._clock() - self._began > SHRINK_SECONDS  # who is away may come back
        for id, group in self._groups().items():
            assert isinstance(group.settings, NodeSettings)
            found[id] = PodsWanted(group.settings, self._replicas(id), may_shrink)
        self._needed = {id: needed for id, needed in self._needed.items() if id in found}
        return found

    def _replicas(self, pool: str) -> int:
        """Return how many pods a pool needs now, or needed lately."""
        now = self._clock()
        ids = self._running.keys() | self._waiting.keys()
        numbers = [int(id.rpartition("-")[2]) for id in ids if id.rpartition("-")[0] == pool]
        number = max(numbers, default=-1) + 1
        before = [each for each in self._needed.get(pool, []) if now - each[0] < SHRINK_SECONDS]
        # Of what was needed before only what is above it counts, each since it was needed last.
        self._needed[pool] = [*(each for each in before if each[1] > number), (now, number)]
        return max(needed for _, needed in self._needed[pool])

    def _groups(self) -> dict[str, Group]:
        """Return the pools whose nodes run on pods."""
        wanted = self._wanted()
        groups = {} if wanted is None else wanted.groups
        return {id: group for id, group in groups.items() if is_on_pod(group.settings)}

    def _failed(self, error: ApiError | Deposed) -> float:
        """Note that the cluster cannot be changed; return seconds until the next try."""
        pause = self._backoff.failed(0.0)
        if isinstance(error, ApiError):
            pause = max(pause, error.retry_after)
        logger.warning("pods are not as they should be; trying again in %.1f s: %s", pause, error)
        for waiting in [*self._waiting.values()]:
            self._fail(waiting.launch, str(error))
        return pause

    def _fail(self, launch: Launch, why: str) -> None:
        """Have a node that waits count as one that could not be started."""
        self._waiting.pop(launch.id, None)
        self._ended.append(never_started(launch, why))
        self._changed()


def is_on_pod(settings: object) -> bool:
    """Return whether such a process is started on a pod."""
    return isinstance(settings, NodeSettings) and settings.launcher == "kubernetes"


def _to_move_down(group: Group, running: Iterable[RunningProcess]) -> RunningProcess | None:
    """Return a pool's highest node where a number below is free, and nothing else moves."""
    nodes = [each for each in running if each.owner == group.id]
    last = max(nodes, key=lambda each: int(each.id.rpartition("-")[2]), default=None)
    is_steady = len(nodes) == group.replicas and all(each.state == "ready" for each in nodes)
    if last is None or not is_steady or int(last.id.rpartition("-")[2]) < len(nodes):
        return None
    return last
