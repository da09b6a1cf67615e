"""The StatefulSet of a pool, and the pods of it: from what is wanted to objects. Pure.

pool fra-decode      StatefulSet skerry-fra-decode, Secret skerry-fra-decode-join
node fra-decode-3    runs on the host that is the pod skerry-fra-decode-3
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import yaml

from skerry_regions.control.kubernetes.api_server import AccessError, Object
from skerry_regions.control.planning.launcher import NodeSettings
from skerry_regions.control.planning.placing import pod_set_name
from skerry_regions.process.local_launcher import Deposed

TEMPLATE = Path(__file__).with_name("node_pods.yaml")
MAX_TEMPLATE_BYTES = 1 << 20
MANAGER = "app.kubernetes.io/managed-by"
OURS = f"{MANAGER}=skerry-control"  # a selector
SET = "skerry.dev/set"  # label: of whose pods they are
POOL = "skerry.dev/pool"  # annotation: a pool's id may be longer than a label
TERM = "skerry.dev/term"  # annotation: of the control plane that wrote it last
MADE_OF = "skerry.dev/made-of"  # annotation: digest of the template, also on each pod
AGENT_BYTES = 256 << 20  # of `skerry host`, beside its node
GPU = "nvidia.com/gpu"
NO_START = {
    "CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImagePull",
    "ImagePullBackOff", "InvalidImageName", "RunContainerError",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSource:
    """What pods of all pools are made of."""

    template: Object  # a StatefulSet
    image: str
    join: str  # URL at which they reach the control plane

    @classmethod
    def read(cls, file: Path, *, image: str, join: str) -> PodSource:
        """Read a template's file. Raises AccessError."""
        try:
            with file.open("rb") as opened:
                template = yaml.safe_load(opened.read(MAX_TEMPLATE_BYTES))
        except (OSError, yaml.YAMLError) as error:
            raise AccessError(f"{file}: {error}") from None
        try:
            is_set = template["kind"] == "StatefulSet"
            [container] = template["spec"]["template"]["spec"]["containers"]
            is_set = is_set and container["args"][0] == "host"
        except (KeyError, TypeError, ValueError, IndexError):
            is_set = False
        if not is_set:
            raise AccessError(f"{file}: not a StatefulSet with one container, which runs `host`")
        return cls(template=template, image=image, join=join)

    def stateful_set(
        self, pool: str, settings: NodeSettings, *, replicas: int, term: int
    ) -> Object:
        """Return the StatefulSet of a pool."""
        name, made = pod_set_name(pool), copy.deepcopy(self.template)
        labels, spec = {MANAGER: "skerry-control", SET: name}, made["spec"]
        template = spec["template"]
        _fill(template, settings, self, name)
        template["metadata"].setdefault("labels", {}).update(labels)
        digest = hashlib.blake2b(msgspec.json.encode(template, order="sorted"), digest_size=8)
        notes = template["metadata"].setdefault("annotations", {})
        notes[MADE_OF] = digest.hexdigest()
        spec["replicas"], spec["selector"] = replicas, {"matchLabels": {SET: name}}
        metadata = made.setdefault("metadata", {})
        metadata["name"] = name
        metadata.setdefault("labels", {}).update(labels)
        metadata["annotations"] = (metadata.get("annotations") or {}) | {
            POOL: pool, TERM: str(term), MADE_OF: digest.hexdigest(),
        }  # fmt: skip
        return made


def _fill(template: Object, settings: NodeSettings, source: PodSource, name: str) -> None:
    """Fill in what a pool says of its nodes."""
    pod = template["spec"]
    [container] = pod["containers"]
    container["image"] = source.image
    cpus, memory = str(settings.threads or 1), str(settings.memory + AGENT_BYTES)
    resources: dict[str, dict[str, str]] = container.setdefault("resources", {})
    resources.setdefault("requests", {}).update(cpu=cpus, memory=memory)
    resources.setdefault("limits", {}).update(memory=memory)
    if settings.gpus:
        resources["limits"][GPU] = str(settings.gpus)
    values = {
        "SKERRY_JOIN": source.join, "SKERRY_CPUS": cpus, "SKERRY_MEMORY": str(settings.memory),
    }  # fmt: skip
    container["env"] = [
        *({"name": key, "value": value} for key, value in values.items()),
        *container.get("env", []),  # the arguments may refer to all of them
    ]
    pod.setdefault("volumes", []).append(
        {"name": "join", "secret": {"secretName": secret_name(name), "optional": True}}
    )


def changed(found: Object, wanted: Object) -> Object | None:
    """Return a StatefulSet as it is to be; None where it is so. What others wrote of it stays.

    Raises Deposed where a control plane of a later term wrote it.
    """
    ours = wanted["metadata"]["annotations"]
    check_term(found, int(ours[TERM]))
    is_to_be = copy.deepcopy(found)
    notes = is_to_be["metadata"].setdefault("annotations", {})
    if notes.get(MADE_OF) != ours[MADE_OF]:
        is_to_be["spec"]["template"] = wanted["spec"]["template"]
    notes.update(ours)
    is_to_be["spec"]["replicas"] = wanted["spec"]["replicas"]
    is_to_be["spec"]["updateStrategy"] = wanted["spec"].get("updateStrategy", {"type": "OnDelete"})
    return None if is_to_be == found else is_to_be


def check_term(found: Object, term: int) -> None:
    """Raises Deposed where a control plane of a later term wrote a StatefulSet."""
    metadata = found["metadata"]
    theirs = (metadata.get("annotations") or {}).get(TERM, "")
    if theirs.isdecimal() and int(theirs) > term:
        raise Deposed(
            f"{metadata['name']} is another control plane's (its term is {theirs}, ours {term})"
        )


def secret_name(set_name: str) -> str:
    """Return the name of a set's Secret, which has the join token."""
    return f"{set_name}-join"


def join_secret(set_name: str, token: str) -> Object:
    """Return the Secret with a pool's join token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(set_name), "labels": {MANAGER: "skerry-control"}},
        "type": "Opaque",
        "stringData": {"token": token},
    }


def pool_of(made: Object) -> str:
    """Return the pool of a StatefulSet of ours."""
    return str((made["metadata"].get("annotations") or {}).get(POOL, ""))


def made_of(made: Object) -> str:
    """Return the digest of the template that a StatefulSet or a pod is made of."""
    return str((made["metadata"].get("annotations") or {}).get(MADE_OF, ""))


def deleted_at(pod: Object) -> float | None:
    """Return when a pod's deletion was requested, in Unix seconds; None: it was not."""
    metadata = pod["metadata"]
    if (until := metadata.get("deletionTimestamp")) is None:
        return None
    grace = float(metadata.get("deletionGracePeriodSeconds") or 0)
    return datetime.fromisoformat(until).timestamp() - grace


def trouble_of(pod: Object) -> str:
    """Return why a pod does not come up; nothing when it may."""
    status: dict[str, Any] = pod.get("status") or {}
    for each in status.get("conditions") or ():
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return f"{each.get('reason', '')}: {each.get('message', '')}"[:500]
    for each in status.get("containerStatuses") or ():
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in NO_START:
            return f"{waiting['reason']}: {waiting.get('message', '')}"[:500]
    return ""
