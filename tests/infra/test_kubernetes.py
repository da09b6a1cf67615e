"""Kubernetes manifests: what they start exists, is shut in and drains; the schemas take them."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.regions.drivers.nats_server import BINARY
from tests.regions.node.test_node_control import control as node_control
from tests.regions.toy_node import toy_engine
from tests.tools import program

from skerry_cli import build_parser
from skerry_cli.home import control_home
from skerry_cli.roles import control_machines, edge, node
from skerry_edge.limits import Limits
from skerry_regions.control.desired.manifest import parse_manifest, wishes
from skerry_regions.control.desired.resources import POOL, PoolSpec
from skerry_regions.control.planning import plan
from skerry_regions.node import process as node_process
from skerry_regions.topology.loading import parse_topology

FOLDER = Path(__file__).parents[2] / "infra" / "kubernetes" / "overlays"
OVERLAYS = sorted(
    str(each.parent.relative_to(FOLDER)) for each in FOLDER.rglob("kustomization.yaml")
)
WHOLE = ("one-region", "three-regions/fra")  # with a control plane and a region
PODS = "one-region-pods"  # whose nodes the control plane starts
LEAST_KUSTOMIZE = 5  # of `patches` and merged literals
VERSIONS = [f"1.{minor}.0" for minor in range(30, 38)]
SEGMENT = {"POD_IP": "10.0.0.7", "POD_NAME": "skerry-0", "NATS_PASSWORD": "secret"}

Manifest = dict[str, Any]


@cache
def built(overlay: str) -> tuple[Manifest, ...]:
    kubectl = program("kubectl", "kubernetes-client")
    told = subprocess.run(
        [kubectl, "version", "--client", "-o", "json"], capture_output=True, check=True
    )
    kustomize = json.loads(told.stdout).get("kustomizeVersion", "v0")
    if int(kustomize[1:].partition(".")[0]) < LEAST_KUSTOMIZE:
        pytest.skip(f"kubectl has kustomize {kustomize}, which is older than {LEAST_KUSTOMIZE}")
    done = subprocess.run(
        [kubectl, "kustomize", str(FOLDER / overlay)], capture_output=True, text=True, check=True
    )
    assert done.stderr == "", "nothing in it is deprecated"
    return tuple(yaml.safe_load_all(done.stdout))


def of(overlay: str, kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in built(overlay) if each["kind"] == kind}


def pods(overlay: str) -> Iterator[tuple[str, Manifest, Manifest]]:
    """Name, pod and container of each workload."""
    for name, workload in of(overlay, "StatefulSet").items():
        pod = workload["spec"]["template"]["spec"]
        [container] = pod["containers"]
        yield name, pod, container


def values_of(overlay: str, container: Manifest) -> dict[str, str]:
    """What its variables are, where a ConfigMap or the manifest says it."""
    found = dict(SEGMENT)
    for each in container.get("env", []):
        reference = each.get("valueFrom", {}).get("configMapKeyRef")
        if reference is not None:
            found[each["name"]] = of(overlay, "ConfigMap")[reference["name"]]["data"][
                reference["key"]
            ]
        elif "value" in each:
            found[each["name"]] = expanded(each["value"], found)
    return found


def expanded(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], text)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_started_is_a_command(overlay: str) -> None:
    started = set[str]()
    for _, _, container in pods(overlay):
        if "/skerry:" in container["image"]:
            values = values_of(overlay, container)
            args = build_parser().parse_args([expanded(each, values) for each in container["args"]])
            started.add(container["args"][0])
            ports = {each["name"]: each["containerPort"] for each in container["ports"]}
            match container["args"][0]:
                case "control":
                    assert args.join_port == control_machines.DEFAULT_JOIN_PORT == ports["join"]
                    assert f":{control_home.DEFAULT_PORT}/healthz" in str(
                        container["livenessProbe"]
                    )
                case "node":
                    assert args.address == f"tcp:10.0.0.7:{node.JOINED_PORT}"
                    assert args.transfer == f"tcp:10.0.0.7:{node.JOINED_PORT + 1}"
                    assert [*ports.values()] == [node.JOINED_PORT, node.JOINED_PORT + 1]
                    assert args.control.removeprefix("unix:") in str(container["livenessProbe"])
                case _:
                    assert args.gateway == f"tcp:10.0.0.7:{edge.JOINED_PORT}"
                    assert [*ports.values()] == [args.port, edge.JOINED_PORT]
    assert started <= {"control", "edge", "node"}
    assert overlay not in WHOLE or started == {"control", "edge", "node"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_shut_in_and_bounded(overlay: str) -> None:
    for name, pod, container in pods(overlay):
        assert pod["automountServiceAccountToken"] is ("serviceAccountName" in pod), name
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        # Else the group may read, after a restart, what only its owner must.
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
        if "/skerry:" in container["image"]:
            home = Path(values_of(overlay, container)["SKERRY_HOME"])
            mounts = {each["mountPath"] for each in container["volumeMounts"]}
            assert str(home.parent) in mounts, "the folder of a volume itself is the group's"
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]
    for namespace in of(overlay, "Namespace").values():
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_workload_has_its_policies(overlay: str) -> None:
    for name, workload in of(overlay, "StatefulSet").items():
        labels = workload["spec"]["template"]["metadata"]["labels"].items()
        policies = of(overlay, "NetworkPolicy").values()
        assert any(
            each["spec"]["podSelector"]["matchLabels"].items() <= labels for each in policies
        )
        budgets = of(overlay, "PodDisruptionBudget").values()
        is_guarded = any(
            each["spec"]["selector"]["matchLabels"].items() <= labels for each in budgets
        )
        assert is_guarded == (workload["spec"]["replicas"] > 1), name
        assert workload["spec"]["serviceName"] in of(overlay, "Service")


@pytest.mark.parametrize("overlay", WHOLE)
def test_stopping_leaves_time_to_drain(overlay: str) -> None:
    seconds = {name: pod["terminationGracePeriodSeconds"] for name, pod, _ in pods(overlay)}
    assert seconds["skerry-node"] > node.DRAIN_SECONDS + node_process.CLOSE_SECONDS
    assert seconds["skerry-edge"] > plan.EDGE_DRAIN_SECONDS + Limits().drain_seconds
    probes = {name: container["startupProbe"] for name, _, container in pods(overlay)}
    start = probes["skerry-node"]
    assert start["periodSeconds"] * start["failureThreshold"] >= plan.START_SECONDS


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_topologies_say_what_regions_join(overlay: str) -> None:
    for name, each in of(overlay, "ConfigMap").items():
        if name.startswith("skerry-topology"):
            if overlay == PODS:
                continue
            topology = parse_topology(each["data"]["topology.yaml"].encode())
            assert {pool.replicas for pool in topology.pools} == {0}
            wanted = {f"{pool.region}-{pool.name}" for pool in topology.pools}
            joined = {
                config["data"]["pool"]
                for other in OVERLAYS
                for key, config in of(other, "ConfigMap").items()
                if key.startswith("skerry-region") and other.split("/")[0] == overlay.split("/")[0]
            }
            assert wanted == joined


def test_nodes_on_pods_are_all_that_there_are_where_the_control_plane_starts_them() -> None:
    [wanted] = [
        parse_manifest(each["data"]["topology.yaml"].encode(), name)
        for name, each in of(PODS, "ConfigMap").items()
        if name.startswith("skerry-topology")
    ]
    specs = [wish.spec for wish in wishes(wanted.value) if wish.kind is POOL]
    assert {spec.launcher for spec in specs if isinstance(spec, PoolSpec)} == {"kubernetes"}
    assert of(PODS, "StatefulSet").keys() == {"skerry-control", "skerry-edge", "skerry-nats"}
    [(_, pod, container)] = [each for each in pods(PODS) if each[0] == "skerry-control"]
    args = build_parser().parse_args(
        [expanded(each, values_of(PODS, container)) for each in container["args"]]
    )
    [service] = [each for name, each in of(PODS, "Service").items() if name == "skerry-control"]
    assert args.kubernetes == "in-cluster"
    assert args.kubernetes_join == f"https://skerry-control:{service['spec']['ports'][0]['port']}"
    [account] = of(PODS, "ServiceAccount")
    assert pod["serviceAccountName"] == account
    [binding] = of(PODS, "RoleBinding").values()
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": account, "namespace": "skerry"}
    ]
    assert binding["roleRef"]["name"] in of(PODS, "Role")


def test_the_guide_says_what_there_is() -> None:
    guide = (FOLDER.parents[2] / "docs" / "kubernetes.md").read_text()
    assert {*re.findall(r"apply -k infra/kubernetes/overlays/(\S+)", guide)} | {
        "three-regions/control"  # part of fra
    } == {*OVERLAYS}
    commands = re.findall(r"\$\(skerry (.+?)\)", guide)
    assert len(commands) == 2
    for command in commands:
        build_parser().parse_args(shlex.split(command))
    names = {key for overlay in OVERLAYS for key in of(overlay, "StatefulSet")}
    assert "skerry-control" in names
    assert "exec -i skerry-control-0" in guide
    secrets = {*re.findall(r"create secret generic (\S+)", guide)}
    used = set[str]()
    for overlay in OVERLAYS:
        for _, pod, container in pods(overlay):
            used |= {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
            sources = [each.get("valueFrom", {}) for each in container["env"]]
            used |= {each["secretKeyRef"]["name"] for each in sources if "secretKeyRef" in each}
    assert secrets == used == {"skerry-nats", "skerry-join"}


def test_nats_takes_its_configuration(tmp_path: Path) -> None:
    [config] = [
        each
        for name, each in of("one-region", "ConfigMap").items()
        if name.startswith("skerry-nats")
    ]
    file = tmp_path / "nats.conf"
    file.write_text(config["data"]["nats.conf"].replace("/data", str(tmp_path)))
    done = subprocess.run(
        [BINARY, "-t", "-c", str(file)], env=SEGMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "sync_interval: always" in file.read_text()


@pytest.fixture
async def node_socket(tmp_path: Path) -> AsyncGenerator[Path]:
    async with node_control(tmp_path, toy_engine(), []) as (_, address):
        yield Path(address.path)


@pytest.mark.anyio
async def test_a_nodes_health_is_asked_as_it_answers(node_socket: Path) -> None:
    [(_, _, container)] = [each for each in pods("one-region") if each[0] == "skerry-node"]
    python, flag, code = container["livenessProbe"]["exec"]["command"]
    assert python == "/opt/skerry/bin/python"
    for path, healthy in ((str(node_socket), True), (f"{node_socket}-gone", False)):
        asked = await asyncio.create_subprocess_exec(
            sys.executable, flag, code.replace("/tmp/control", path),
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert (await asked.wait() == 0) == healthy


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_take_them(version: str, tmp_path: Path) -> None:
    own = Path(sys.executable).with_name("kubernetes-validate")
    validate = str(own) if own.exists() else shutil.which(own.name)
    if validate is None:
        pytest.skip(
            "kubernetes-validate is missing: it comes with the dependency group `kubernetes`"
        )
    for overlay in OVERLAYS:
        file = tmp_path / f"{overlay.replace('/', '-')}.yaml"
        file.write_text(yaml.safe_dump_all(built(overlay)))
        done = subprocess.run(
            [validate, "-k", version, "--strict", str(file)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
