"""A cluster that answers, a launcher over it, and hosts that play its pods."""

from __future__ import annotations

import base64
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from tests.regions.control.hosts.hosted import Machine, member
from tests.regions.control.joining import Platform
from tests.regions.control.kubernetes.cluster import (
    Cluster,
)
from tests.regions.control.support import Tokens

from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.resources import POOL
from skerry_regions.control.kubernetes.api_server import (
    ApiServer,
)
from skerry_regions.control.kubernetes.pod_launcher import PodLauncher
from skerry_regions.control.kubernetes.pod_sets import PodSets
from skerry_regions.control.kubernetes.pool_pods import GPU, TEMPLATE, PodSource
from skerry_regions.control.machines.link import ControlLink, join
from skerry_regions.control.planning.launcher import RunningProcess
from skerry_regions.control.planning.plan import Drain, Kill, StartProcess, plan
from skerry_regions.process.launch_folder import Slot

ROOT = Path(__file__).parents[4]
SET = "skerry-fra-many"
NODES = [f"fra-many-{number}" for number in range(9)]
IMAGE = "registry.example.com/skerry:0.2.0"


def rights() -> set[tuple[str, str]]:
    """Verbs and resources of the role in the manifests."""
    documents = (ROOT / "infra/kubernetes/components/pods/rights.yaml").read_text()
    [role] = [each for each in yaml.safe_load_all(documents) if each["kind"] == "Role"]
    return {
        (verb, kind)
        for rule in role["rules"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }


class Pod(Machine):
    """A pod as a host: it joins with what its Secret says, and does what it is ordered to."""

    def __init__(self, control: Platform, cluster: Cluster, name: str) -> None:
        manifest = cluster.objects["pods", name]
        [container] = manifest["spec"]["containers"]
        env = {each["name"]: each.get("value", "") for each in container["env"]}
        [secret] = [each["secret"] for each in manifest["spec"]["volumes"] if "secret" in each]
        data = cluster.objects["secrets", secret["secretName"]]["data"]
        token = base64.b64decode(data["token"]).decode()
        folder = control.folder / "volumes" / name
        if not (folder / "machine.json").exists():
            folder.parent.mkdir(exist_ok=True)
            join(folder, env["SKERRY_JOIN"], token, kind="host", hostname=name, clock=control.clock)
        self.link = ControlLink(folder, clock=control.clock)
        self.id = self.link.machine
        self.uid = manifest["metadata"]["uid"]
        gpus = range(int(container["resources"]["limits"].get(GPU, "0")))
        self.offers = Slot(
            cpus=int(env["SKERRY_CPUS"]), memory=int(env["SKERRY_MEMORY"]), gpus=tuple(gpus)
        )
        self.running = {}
        self.is_leaving = False

    def work(self) -> None:
        """Report, follow the orders, and let what drains end."""
        self.report(is_leaving=self.is_leaving)
        self.follow()
        ended = {id for id, each in self.running.items() if each.state == "draining"}
        self.running = {id: each for id, each in self.running.items() if id not in ended}
        self.report(
            is_leaving=self.is_leaving,
            members=tuple(map(member, self.running.values())),
        )


class World:
    """A control plane, a cluster, and its pods as hosts."""

    def __init__(self, control: Platform, cluster: Cluster, api: ApiServer) -> None:
        self.control, self.cluster, self.api = control, cluster, api
        self.pods: dict[str, Pod] = {}
        self.frozen: set[str] = set()
        self.ended: list[str] = []
        self.links = ExitStack()
        self.launcher = self.made(term=1)

    def made(self, term: int) -> PodLauncher:
        source = PodSource.read(TEMPLATE, image="", join=self.control.url)
        sets = PodSets(
            self.api, source, term=term, clock=self.control.clock, own_pod="skerry-control-0",
            token=lambda pool, period: self.control.token(pool=pool, max_uses=50),
        )  # fmt: skip
        return PodLauncher(
            self.control.hosts, sets, self.control.wanted, clock=self.control.clock,
            changed=lambda: None,
        )  # fmt: skip

    async def step(self, seconds: float = 1.0) -> dict[str, RunningProcess]:
        """One look of the reconciler, of the launcher, and of everybody in the cluster."""
        self.control.look()
        assert self.control.groups is not None
        seen = await self.launcher.list()
        self.ended += [each.sentence for each in seen.ended if not each.asked]
        for action in plan(self.control.groups, seen.running.values()):
            match action:
                case StartProcess(launch):
                    await self.launcher.start(launch)
                case Drain(id):
                    await self.launcher.drain(id, patiently=True)
                case Kill(id):
                    await self.launcher.stop(id)
        await self.launcher.look()
        self.work()
        self.control.clock.now += seconds
        return dict(seen.running)

    def work(self) -> None:
        self.cluster.settle()
        there = self.there()
        for name in self.pods.keys() - there.keys():
            del self.pods[name]
        for name, manifest in there.items():
            known = self.pods.get(name)
            if known is None or known.uid != manifest["metadata"]["uid"]:
                pod = self.pods[name] = Pod(self.control, self.cluster, name)
                self.links.callback(pod.link.close)
            if name not in self.frozen:
                self.pods[name].work()

    async def until_ready(self, *names: str, most: int = 40) -> None:
        seen = dict[str, RunningProcess]()
        for _ in range(most):
            seen = await self.step()
            ready = {id for id, each in seen.items() if each.state == "ready"}
            if ready == {*names} == seen.keys():
                return
        raise AssertionError(f"not ready after {most} looks: {seen}")

    async def steps(self, number: int, seconds: float = 1.0) -> None:
        for _ in range(number):
            await self.step(seconds)

    async def wait(self, seconds: float) -> None:
        """Let time pass, in looks that no host is silent for too long between."""
        await self.steps(math.ceil(seconds / 4), 4.0)

    def want(self, **values: Any) -> None:
        changes = Changes(self.control.store, Tokens(), b"s" * 32)
        changes.update(POOL, "fra-many", values, actor="test", if_match=None)

    def set(self) -> dict[str, Any]:
        return self.cluster.objects["statefulsets", SET]

    def there(self) -> dict[str, dict[str, Any]]:
        """Pods of the pool."""
        return {name: pod for name, pod in self.cluster.of("pods").items() if SET in name}

    def ordinals(self) -> list[int]:
        return sorted(int(name.rpartition("-")[2]) for name in self.there())
