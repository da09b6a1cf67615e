"""Keeps the cluster's StatefulSets of nodes as they are wanted, within a control plane's term."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from skerry_regions.control.kubernetes.api_server import ApiError, ApiServer, Object
from skerry_regions.control.kubernetes.pool_pods import (
    OURS,
    SET,
    PodSource,
    changed,
    check_term,
    deleted_at,
    join_secret,
    made_of,
    pool_of,
    trouble_of,
)
from skerry_regions.control.planning.launcher import NodeSettings
from skerry_regions.control.planning.placing import pod_set_name

SETS, PODS, SECRETS = "apps/v1/statefulsets", "v1/pods", "v1/secrets"
ATTEMPTS = 5  # to change an object that others change, too
TOKEN_SECONDS = 7 * 86_400.0  # between two tokens of a pool; each is valid for twice that
GONE_SECONDS = 30.0  # after its end was requested, a silent pod is gone

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PodsWanted:
    """The pods of a pool that there are to be."""

    settings: NodeSettings
    replicas: int
    may_shrink: bool = True


@dataclass(frozen=True, slots=True)
class PodsSeen:
    """What the cluster says of pods, by name."""

    troubles: Mapping[str, str]  # why they do not start
    outdated: frozenset[str]  # made of another template than they would be now


class PodSets:
    """Of one namespace. Lives on one event loop."""

    def __init__(
        self,
        api: ApiServer,
        source: PodSource,
        *,
        term: int,
        token: Callable[[str, int], str],
        clock: Callable[[], float],
        own_pod: str = "",
    ) -> None:
        """`token` returns a join token for a pool and a period; it blocks. `clock` is Unix
        seconds. Where the source names no image, it is that of `own_pod`."""
        self._api = api
        self._source = source
        self._term = term
        self._token = token
        self._clock = clock
        self._own_pod = own_pod
        self._given: dict[str, int] = {}  # by pool, the period of its token

    async def keep(
        self,
        wanted: Mapping[str, PodsWanted],
        known: Collection[str],
        busy: Collection[str],
        heard: Collection[str],
    ) -> PodsSeen:
        """Make the sets of pools as they are wanted, and remove those of no `known` pool.

        An outdated pod is deleted when no node runs on it: it is not `busy`. One that is to end and
        is not `heard` is, by force: its machine may be gone, and whoever has the name of what it
        ran is above that. Raises ApiError or Deposed.
        """
        if not self._source.image:
            self._source = replace(self._source, image=await self._own_image())
        found = {each["metadata"]["name"]: each for each in await self._api.all_of(SETS, OURS)}
        for pool, pods in wanted.items():
            await self._keep(pool, pods, found.get(pod_set_name(pool)))
        for each in found.values():
            if pool_of(each) not in known:
                await self._remove(each)
        current = {
            pod_set_name(pool): made_of(self._made(pool, each)) for pool, each in wanted.items()
        }
        troubles, outdated = dict[str, str](), set[str]()
        for pod in await self._api.all_of(PODS, OURS) if found else []:
            name = pod["metadata"]["name"]
            if why := trouble_of(pod):
                troubles[name] = why
            if current.get(pod["metadata"]["labels"].get(SET, ""), made_of(pod)) != made_of(pod):
                outdated.add(name)
            await self._replace(
                pod, is_useless=name in outdated and name not in busy, is_heard=name in heard
            )
        return PodsSeen(troubles, frozenset(outdated))

    async def _own_image(self) -> str:
        """Return the image that we run: nodes are of our version."""
        pod = await self._api.get(PODS, self._own_pod)
        if pod is None:
            raise ApiError(404, f"there is no pod {self._own_pod!r}: give --kubernetes-image")
        return str(pod["spec"]["containers"][0]["image"])

    async def _keep(self, pool: str, pods: PodsWanted, found: Object | None) -> None:
        made = self._made(pool, pods)
        for _ in range(ATTEMPTS):
            if found is None and not pods.replicas:
                return
            try:
                if found is None:
                    await self._give_token(pool)
                    await self._api.create(SETS, made)
                    logger.info("%s is made, of %d pods", made["metadata"]["name"], pods.replicas)
                    return
                there = found["spec"].get("replicas", 1)
                if not pods.may_shrink:
                    made["spec"]["replicas"] = max(pods.replicas, there)
                if (to_be := changed(found, made)) is not None:
                    await self._api.replace(SETS, to_be)
                if pods.replicas:
                    await self._give_token(pool)
                return
            except ApiError as error:
                if error.status != 409:  # else somebody made or changed it meanwhile
                    raise
            found = await self._api.get(SETS, made["metadata"]["name"])
        raise ApiError(409, f"{made['metadata']['name']} is changed by others all the time")

    def _made(self, pool: str, pods: PodsWanted) -> Object:
        return self._source.stateful_set(
            pool, pods.settings, replicas=pods.replicas, term=self._term
        )

    async def _remove(self, found: Object) -> None:
        """Remove the set of a pool that is gone, whose nodes have drained."""
        check_term(found, self._term)
        logger.info("%s goes: there is no such pool", found["metadata"]["name"])
        await self._api.delete(SETS, found["metadata"]["name"], uid=found["metadata"]["uid"])

    async def _give_token(self, pool: str) -> None:
        """Write the pool's join token down, once a period."""
        period = int(self._clock() // TOKEN_SECONDS)
        if self._given.get(pool) == period:
            return
        secret = join_secret(pod_set_name(pool), await asyncio.to_thread(self._token, pool, period))
        try:
            await self._api.create(SECRETS, secret)
        except ApiError as error:
            if error.status != 409:
                raise
            await self._api.replace(SECRETS, secret)
        self._given[pool] = period

    async def _replace(self, pod: Object, *, is_useless: bool, is_heard: bool) -> None:
        """Delete a pod that Kubernetes is to make again."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if (since := deleted_at(pod)) is not None:
            if self._clock() - since > GONE_SECONDS and not is_heard:
                logger.warning("the pod %s is deleted by force: nobody hears it", name)
                await self._api.delete(PODS, name, uid=uid, seconds=0)
        elif is_useless:
            logger.info("the pod %s is replaced: its template has changed", name)
            await self._api.delete(PODS, name, uid=uid)
