"""Nodes on pods: what the launcher makes of pools in a cluster, and when the cluster refuses."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import yaml
from tests.regions.control.kubernetes.cluster import (
    Refusal,
)
from tests.regions.control.kubernetes.pods import IMAGE, NODES, ROOT, SET, World
from tests.regions.control.support import Tokens

from skerry_cli import build_parser
from skerry_cli.roles import node
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.resources import POOL
from skerry_regions.control.kubernetes import pod_launcher, pod_sets
from skerry_regions.control.kubernetes.api_server import (
    AccessError,
    ApiServer,
    ClusterAccess,
)
from skerry_regions.control.kubernetes.pool_pods import GPU, MADE_OF, TEMPLATE, PodSource
from skerry_regions.control.planning.launcher import RunningProcess
from skerry_regions.control.planning.placing import pod_set_name
from skerry_regions.control.planning.plan import DRAIN_SECONDS
from skerry_regions.control.reconcile import host_agent

pytestmark = pytest.mark.anyio


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
