"""Nodes on pods: what the launcher makes of pools in a cluster, and when the cluster refuses."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import math
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.edge.http.test_tls import PAIRS
from tests.regions.control.hosts.hosted import Machine, member
from tests.regions.control.joining import Platform, platform
from tests.regions.control.kubernetes.cluster import (
    NAMESPACE,
    Cluster,
    Refusal,
    serving_cluster,
)
from tests.regions.control.support import MODEL, Tokens, new

from skerry_cli import build_parser
from skerry_cli.roles import node
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.resources import POOL
from skerry_regions.control.kubernetes import pod_launcher, pod_sets
from skerry_regions.control.kubernetes.api_server import (
    AccessError,
    ApiError,
    ApiServer,
    ClusterAccess,
)
from skerry_regions.control.kubernetes.pod_launcher import PodLauncher
from skerry_regions.control.kubernetes.pod_sets import PodSets
from skerry_regions.control.kubernetes.pool_pods import GPU, MADE_OF, TEMPLATE, TERM, PodSource
from skerry_regions.control.machines.link import ControlLink, join
from skerry_regions.control.planning.launcher import RunningProcess
from skerry_regions.control.planning.placing import pod_set_name
from skerry_regions.control.planning.plan import DRAIN_SECONDS, Drain, Kill, StartProcess, plan
from skerry_regions.control.reconcile import host_agent
from skerry_regions.process.launch_folder import Slot
from skerry_regions.process.local_launcher import Deposed

pytestmark = pytest.mark.anyio
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


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Platform]:
    with platform(tmp_path) as made:
        new(
            made.store, "pools", name="many", region="fra", role="decode", model=MODEL,
            runner="toy", launcher="kubernetes", threads=2, memory="4GiB", replicas=2,
        )  # fmt: skip
        yield made


@pytest.fixture
def cluster(control: Platform) -> Cluster:
    return Cluster(rights(), control.clock)


@pytest.fixture
async def api(cluster: Cluster, tmp_path: Path) -> AsyncGenerator[ApiServer]:
    (tmp_path / "token").write_text(cluster.token)
    async with serving_cluster(cluster, PAIRS / "first.pem", PAIRS / "first.key") as url:
        access = ClusterAccess(
            server=url, namespace=NAMESPACE, token_file=tmp_path / "token",
            ca_file=PAIRS / "first.pem",
        )  # fmt: skip
        async with ApiServer(access) as made:
            yield made


@pytest.fixture
async def world(control: Platform, cluster: Cluster, api: ApiServer) -> AsyncGenerator[World]:
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "skerry-control-0",
           "ownerReferences": [{"uid": "control"}]},
           "spec": {"containers": [{"name": "control", "image": IMAGE}]}}  # fmt: skip
    cluster.objects["statefulsets", "skerry-control"] = {
        "metadata": {"name": "skerry-control", "uid": "control"}, "spec": {"replicas": 1},
    }  # fmt: skip
    cluster.objects["pods", "skerry-control-0"] = own
    made = World(control, cluster, api)
    with made.links:
        yield made


async def test_a_pool_has_as_many_pods_as_nodes(world: World) -> None:
    await world.until_ready(*NODES[:2])
    made = world.set()
    assert made["spec"]["replicas"] == 2
    [container] = made["spec"]["template"]["spec"]["containers"]
    assert container["image"] == IMAGE, "that of the control plane's own pod"
    assert container["resources"] == {
        "requests": {"cpu": "2", "memory": str((4 << 30) + (256 << 20))},
        "limits": {"memory": str((4 << 30) + (256 << 20))},
    }
    world.want(replicas=4)
    await world.until_ready(*NODES[:4])
    assert (world.set()["spec"]["replicas"], world.ordinals()) == (4, [0, 1, 2, 3])
    world.want(replicas=1)
    await world.until_ready(NODES[0])
    assert world.set()["spec"]["replicas"] == 4, "a node may only be away"
    await world.wait(pod_launcher.SHRINK_SECONDS + 8)
    assert (world.set()["spec"]["replicas"], world.ordinals()) == (1, [0])
    assert world.ended == []


async def test_a_new_template_rolls_through_the_pods(world: World) -> None:
    await world.until_ready(*NODES[:2])
    before = {name: pod["metadata"]["uid"] for name, pod in world.there().items()}
    secrets = dict(world.cluster.of("secrets"))
    world.want(threads=3)
    most, fewest = 0, 9
    for _ in range(30):
        seen = await world.step()
        fewest = min(fewest, sum(each.state == "ready" for each in seen.values()))
        most = max(most, len(seen))
    assert (most, fewest) == (3, 2), "one more at a time, and never fewer ready"
    await world.until_ready(*NODES[:2])
    pods = world.there()
    assert all(pods[name]["metadata"]["uid"] != uid for name, uid in before.items())
    assert {name: pod.offers.cpus for name, pod in world.pods.items() if name in before} == {
        f"{SET}-0": 3, f"{SET}-1": 3,
    }  # fmt: skip
    digests = {pod["metadata"]["annotations"][MADE_OF] for pod in pods.values()}
    assert digests == {world.set()["metadata"]["annotations"][MADE_OF]}
    assert world.cluster.of("secrets") == secrets, "a volume needs no other token"
    assert world.ended == []


async def test_a_pod_that_is_evicted_hands_its_node_on_and_gets_it_back(world: World) -> None:
    await world.until_ready(*NODES[:2])
    world.cluster.ends_pods = False  # not before its host has left
    victim = world.pods[f"{SET}-0"]
    victim.is_leaving = True
    world.cluster._delete("pods", f"{SET}-0", None)
    seen = dict[str, RunningProcess]()
    for _ in range(10):
        seen = await world.step()
        assert sum(each.state == "ready" for each in seen.values()) >= 2 or victim.running
        if not victim.running:
            break
    assert NODES[2] in seen, "elsewhere first"
    world.cluster.ends_pods = True
    await world.until_ready(*NODES[:2])
    await world.wait(pod_launcher.SHRINK_SECONDS + 8)
    assert world.ordinals() == [0, 1], "it moved down again, and its pod is gone"
    assert world.ended == []


async def test_a_pod_of_a_machine_that_is_gone_is_deleted_by_force(world: World) -> None:
    await world.until_ready(*NODES[:2])
    world.cluster.ends_pods = False  # its kubelet does not answer
    world.frozen = {f"{SET}-1"}
    uid = world.there()[f"{SET}-1"]["metadata"]["uid"]
    await world.steps(8)
    assert world.ended == [
        f"fra-many-1 is lost: its host {world.pods[f'{SET}-1'].id} is silent for 5 s"
    ]
    world.cluster._delete("pods", f"{SET}-1", None)  # as the control plane of Kubernetes does
    world.frozen = set()
    before = world.pods[f"{SET}-1"]
    before.work = lambda: None  # type: ignore[method-assign]
    await world.steps(10)
    assert world.there()[f"{SET}-1"]["metadata"]["uid"] == uid, "it may be ending"
    await world.wait(2 * pod_sets.GONE_SECONDS)
    assert world.there()[f"{SET}-1"]["metadata"]["uid"] != uid
    await world.until_ready(*NODES[:2])


async def test_a_later_term_fences(world: World) -> None:
    await world.until_ready(*NODES[:2])
    former, world.launcher = world.launcher, world.made(term=2)
    await world.steps(2)
    assert world.set()["metadata"]["annotations"][TERM] == "2"
    version = world.set()["metadata"]["resourceVersion"]
    world.want(replicas=3)
    world.control.look()
    with pytest.raises(Deposed, match="its term is 2, ours 1"):
        await former.look()
    assert world.set()["metadata"]["resourceVersion"] == version
    await world.until_ready(*NODES[:3])


async def test_what_another_changes_meanwhile_is_read_again(world: World) -> None:
    await world.until_ready(*NODES[:2])
    others = iter(range(3))

    def change(method: str, kind: str) -> None:
        if (method, kind) == ("PUT", "statefulsets") and next(others, None) is not None:
            notes = world.set()["metadata"]["annotations"]
            world.cluster._store("statefulsets", SET, {**world.set()})
            notes["others.example/at"] = world.set()["metadata"]["resourceVersion"]

    world.cluster.before = change
    world.want(replicas=3)
    await world.until_ready(*NODES[:3])
    assert world.set()["spec"]["replicas"] == 3
    assert "others.example/at" in world.set()["metadata"]["annotations"], "theirs stays"


async def test_a_later_term_that_comes_between_is_not_written_over(world: World) -> None:
    await world.until_ready(*NODES[:2])

    def depose(method: str, kind: str) -> None:
        if (method, kind) == ("PUT", "statefulsets"):
            made = world.set()
            made["metadata"]["annotations"] = made["metadata"]["annotations"] | {TERM: "7"}
            world.cluster._store("statefulsets", SET, made)

    world.cluster.before = depose
    world.want(replicas=3)
    with pytest.raises(Deposed, match="its term is 7"):
        await world.steps(2)
    assert world.set()["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ((429, {"retry-after": "7"}), "Kubernetes refuses (429): an apiserver that is busy"),
        ((500, {}), "Kubernetes refuses (500)"),
        ((503, {}), "Kubernetes refuses (503)"),
    ],
)
async def test_faults_are_waited_out(
    world: World, fault: tuple[int, dict[str, str]], told: str
) -> None:
    world.control.look()
    world.cluster.faults = [fault]
    with pytest.raises(ApiError, match=told.replace("(", r"\(").replace(")", r"\)")) as raised:
        await world.step()
    assert raised.value.retry_after == (7.0 if fault[0] == 429 else 0.0)
    pause = world.launcher._failed(raised.value)
    assert pause >= raised.value.retry_after
    await world.launcher.list()
    await world.until_ready(*NODES[:2])
    assert world.cluster.of("statefulsets").keys() == {"skerry-control", SET}


async def test_it_goes_on_by_itself_when_the_cluster_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_launcher, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(world.launcher._backoff, "failed", lambda ran: 0.0)
    world.control.look()
    assert world.control.groups is not None
    world.cluster.faults = [(503, {})] * 3 + [(401, {}), (403, {})]
    await world.launcher.start(world.control.groups["fra-many"].launch(0))
    running = asyncio.create_task(world.launcher.run())
    try:
        while world.cluster.faults:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        [ended] = (await world.launcher.list()).ended
        assert "503" in ended.sentence, "the pool says why, and its node is started again"
        await world.launcher.start(world.control.groups["fra-many"].launch(0))
        while ("statefulsets", SET) not in world.cluster.objects:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])
    assert world.set()["spec"]["replicas"] == 1


async def test_a_missing_right_is_what_the_pool_says(world: World) -> None:
    world.cluster.rights.remove(("create", "statefulsets"))
    with pytest.raises(ApiError) as raised:
        await world.step()
    world.launcher._failed(raised.value)
    [ended] = [each for each in (await world.launcher.list()).ended if each.id == NODES[0]]
    assert ended.sentence == (
        'fra-many-0 is lost: Kubernetes refuses (403): cannot create resource "statefulsets"'
    )


async def test_a_token_is_read_for_each_call(world: World) -> None:
    await world.until_ready(*NODES[:2])
    world.cluster.token = "second"
    with pytest.raises(ApiError, match="401"):
        await world.step()
    world.api.access.token_file.write_text("second\n")
    await world.steps(2)
    world.api.access.token_file.unlink()
    with pytest.raises(ApiError, match="no token for Kubernetes"):
        await world.step()


async def test_lists_come_in_pages_that_expire(world: World) -> None:
    world.want(replicas=3)
    await world.until_ready(*NODES[:3])
    world.cluster.page, world.cluster.expired = 1, 2
    labels = "app.kubernetes.io/managed-by=skerry-control"
    pods = await world.api.all_of("v1/pods", labels)
    assert [each["metadata"]["name"] for each in pods] == [f"{SET}-{n}" for n in range(3)]
    world.cluster.expired = 9
    with pytest.raises(ApiError, match="expires before it is read"):
        await world.api.all_of("v1/pods", labels)


async def test_a_pod_that_finds_no_machine_says_why(world: World) -> None:
    world.frozen = {f"{SET}-0"}
    await world.step()
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes: Insufficient cpu.",
    }
    world.there()[f"{SET}-0"]["status"] = {"conditions": [unscheduled]}
    await world.wait(pod_launcher.TROUBLE_SECONDS)
    assert world.ended == []
    await world.wait(8.0)
    why = "Unschedulable: 0/3 nodes: Insufficient cpu."
    assert world.ended == [f"fra-many-0 is lost: its pod {SET}-0 does not start: {why}"]


async def test_the_set_of_a_pool_that_is_gone_goes(world: World) -> None:
    await world.until_ready(*NODES[:2])
    world.want(replicas=0)
    await world.steps(6)
    changes = Changes(world.control.store, Tokens(), b"s" * 32)
    changes.delete(POOL, "fra-many", actor="test", if_match=None)
    with world.control.store.writing() as writing:
        writing.remove(POOL, "fra-many")
    await world.steps(3)
    assert world.cluster.of("statefulsets").keys() == {"skerry-control"}
    assert world.there() == {}


async def test_a_pool_with_gpus_asks_for_them(world: World) -> None:
    world.want(gpus=2, replicas=1)
    await world.step()
    await world.step()
    [container] = world.set()["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"][GPU] == "2"


@pytest.mark.slow
@pytest.mark.parametrize("version", [f"1.{minor}.0" for minor in range(30, 38)])
async def test_the_schemas_take_what_is_written(world: World, version: str) -> None:
    pytest.importorskip("kubernetes_validate", reason="it comes with the group `kubernetes`")
    world.cluster.kubernetes = version
    await world.until_ready(*NODES[:2])
    world.want(replicas=3, gpus=1, threads=1)
    await world.until_ready(*NODES[:3])
    written = {kind for method, kind in world.cluster.calls if method in ("POST", "PUT")}
    assert written == {"statefulsets", "secrets"}
    made = world.set()
    made["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(Refusal, match="livenessprobe"):
        world.cluster._update("statefulsets", SET, made)


def test_pods_are_as_those_that_join_by_themselves() -> None:
    """The template agrees with the manifests of nodes, but for what a host is and does."""
    manifests = (ROOT / "infra/kubernetes/base/region/nodes.yaml").read_text()
    [theirs] = [each for each in yaml.safe_load_all(manifests) if each["kind"] == "StatefulSet"]
    ours = yaml.safe_load(TEMPLATE.read_text())
    pods = [each["spec"]["template"]["spec"] for each in (ours, theirs)]
    containers = [each["containers"][0] for each in pods]
    for same in ("automountServiceAccountToken", "enableServiceLinks", "securityContext",
                 "topologySpreadConstraints"):  # fmt: skip
        assert pods[0][same] == pods[1][same], same
    for same in ("name", "ports", "readinessProbe", "securityContext", "volumeMounts"):
        assert containers[0][same] == containers[1][same], same
    for same in ("serviceName", "podManagementPolicy", "volumeClaimTemplates"):
        assert ours["spec"][same] == theirs["spec"][same], same
    assert ours["metadata"]["labels"] == theirs["metadata"]["labels"]
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in (ours, theirs)]
    assert labels[0] == labels[1], "policies and budgets are of both"
    values = {"POD_IP": "10.0.0.7", "POD_NAME": "p-0", "SKERRY_JOIN": "https://c:8789",
              "SKERRY_CPUS": "2", "SKERRY_MEMORY": str(4 << 30)}  # fmt: skip
    args = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], each)
            for each in containers[0]["args"]]  # fmt: skip
    parsed = build_parser().parse_args(args)
    assert (parsed.port, parsed.cpus, parsed.memory) == (node.JOINED_PORT, 2, 4 << 30)
    assert (parsed.host, parsed.hostname) == ("10.0.0.7", "p-0")
    grace = pods[0]["terminationGracePeriodSeconds"]
    assert grace > host_agent.LEAVE_SECONDS + DRAIN_SECONDS


def test_names_are_short_enough_and_differ() -> None:
    long = [f"{'r' * 63}-{'p' * 62}{last}" for last in "ab"]
    names = {pod_set_name(pool) for pool in (*long, "fra-many")}
    assert len(names) == 3
    assert SET in names
    assert all(len(f"{name}-5c4d8f7b9c") <= 63 for name in names), "with a revision's hash"


def test_a_template_is_a_stateful_set_of_hosts(tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    for text in ("kind: Deployment", "[", "kind: StatefulSet", ""):
        file.write_text(text)
        with pytest.raises(AccessError, match=r"template\.yaml"):
            PodSource.read(file, image="i", join="https://c:8789")


def test_access_is_the_pods_own(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("skerry\n")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    access = ClusterAccess.of_pod(environ, tmp_path)
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "skerry")
    assert access.path("v1/pods", "a") == "/api/v1/namespaces/skerry/pods/a"
    assert access.path("apps/v1/statefulsets") == "/apis/apps/v1/namespaces/skerry/statefulsets"
    with pytest.raises(AccessError, match="this is no pod"):
        ClusterAccess.of_pod({}, tmp_path)
    with pytest.raises(AccessError, match="https:// alone"):
        ApiServer(dataclasses.replace(access, server="http://10.0.0.1"))
