"""A Kubernetes API server with what the launcher meets of one, and the StatefulSets' controller.

What is written is validated by the schemas of a version of Kubernetes, strictly, where
`kubernetes-validate` is installed; resource versions, uids, immutable fields, graceful deletion,
pages that expire and rights are as Kubernetes' API conventions say.
"""

from __future__ import annotations

import base64
import copy
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

Object = dict[str, Any]
NAMESPACE = "skerry"
GROUPS = {"statefulsets": "/apis/apps/v1", "pods": "/api/v1", "secrets": "/api/v1"}
MUTABLE = {
    "replicas", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds", "ordinals", "revisionHistoryLimit",
}  # fmt: skip  # of a StatefulSet; all else answers 422


class Refusal(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class Cluster:
    """One namespace. `rights` are those of the role that the manifests bind."""

    def __init__(self, rights: set[tuple[str, str]], clock: Callable[[], float]) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.rights = rights
        self.clock = clock
        self.token = "first"
        self.version = 100
        self.faults: list[tuple[int, dict[str, str]]] = []  # of the next calls
        self.calls: list[tuple[str, str]] = []  # method and kind
        self.before: Callable[[str, str], None] = lambda method, kind: None
        self.page = 500
        self.expired = 0  # pages that are over when they are asked for
        self.kubernetes = ""  # version whose schemas count
        self.ends_pods = True  # the kubelet does, as soon as they are to end

    def of(self, kind: str) -> dict[str, Object]:
        return {name: each for (of, name), each in self.objects.items() if of == kind}

    # --- the API ---------------------------------------------------------------------------------

    async def handle(self, request: web.Request) -> web.StreamResponse:
        kind, name = request.match_info["kind"], request.match_info.get("name", "")
        body = await request.json() if request.can_read_body else None
        try:
            self.calls.append((request.method, kind))
            if self.faults:
                code, headers = self.faults.pop(0)
                return _status(code, "Fault", "an apiserver that is busy", headers)
            if request.headers.get("authorization") != f"Bearer {self.token}":
                raise Refusal(401, "Unauthorized", "Unauthorized")
            if request.match_info["namespace"] != NAMESPACE:
                raise Refusal(403, "Forbidden", "another namespace")
            verb = {"POST": "create", "PUT": "update", "DELETE": "delete"}.get(
                request.method, "get" if name else "list"
            )
            if (verb, kind) not in self.rights:
                raise Refusal(403, "Forbidden", f'cannot {verb} resource "{kind}"')
            self.before(request.method, kind)
            if verb == "list":
                return web.json_response(self._listed(kind, request.query))
            return web.json_response(getattr(self, f"_{verb}")(kind, name, body))
        except Refusal as refusal:
            return _status(refusal.code, refusal.reason, str(refusal), {})

    def _listed(self, kind: str, query: Any) -> Object:
        wanted = dict(each.split("=") for each in query["labelSelector"].split(",") if each)
        found = [
            each
            for _, each in sorted(self.of(kind).items())
            if wanted.items() <= each["metadata"].get("labels", {}).items()
        ]
        begin = int(query.get("continue", 0))
        if begin and self.expired:
            self.expired -= 1
            raise Refusal(410, "Expired", "The provided continue parameter is too old")
        end = begin + min(int(query["limit"]), self.page)
        metadata = {"resourceVersion": str(self.version)}
        if end < len(found):
            metadata["continue"] = str(end)
        return {"kind": "List", "metadata": metadata, "items": found[begin:end]}

    def _get(self, kind: str, name: str, _: Object | None) -> Object:
        if (kind, name) not in self.objects:
            raise Refusal(404, "NotFound", f'{kind} "{name}" not found')
        return self.objects[kind, name]

    def _create(self, kind: str, _: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        self._validate(kind, body)
        if (kind, name) in self.objects:
            raise Refusal(409, "AlreadyExists", f'{kind} "{name}" already exists')
        if body["metadata"].get("resourceVersion"):
            raise Refusal(
                400, "BadRequest", "resourceVersion should not be set on objects to be created"
            )
        made = copy.deepcopy(body)
        made["metadata"] |= {
            "namespace": NAMESPACE, "uid": f"uid-{self.version}", "generation": 1,
            "creationTimestamp": _moment(self.clock()),
        }  # fmt: skip
        return self._store(kind, name, made)

    def _update(self, kind: str, name: str, body: Object) -> Object:
        there = self._get(kind, name, None)
        self._validate(kind, body)
        if body["metadata"]["name"] != name:
            raise Refusal(400, "BadRequest", "the name of the object does not match the URL")
        given = body["metadata"].get("resourceVersion", "")
        if given and given != there["metadata"]["resourceVersion"]:
            raise Refusal(
                409, "Conflict", "the object has been modified; please apply your changes"
            )
        if kind == "statefulsets":
            kept = [
                {key: value for key, value in each["spec"].items() if key not in MUTABLE}
                for each in (there, body)
            ]
            if kept[0] != kept[1]:
                raise Refusal(
                    422, "Invalid", "updates to statefulset spec for fields are forbidden"
                )
        made = copy.deepcopy(body)
        for field in ("uid", "namespace", "creationTimestamp"):
            made["metadata"][field] = there["metadata"][field]
        return self._store(kind, name, made)

    def _delete(self, kind: str, name: str, body: Object | None) -> Object:
        there, options = self._get(kind, name, None), body or {}
        uid = options.get("preconditions", {}).get("uid")
        if uid is not None and uid != there["metadata"]["uid"]:
            raise Refusal(409, "Conflict", "the uid in the precondition does not match")
        if kind != "pods":
            return self.objects.pop((kind, name))
        grace = options.get(
            "gracePeriodSeconds", there["spec"].get("terminationGracePeriodSeconds", 30)
        )
        if grace == 0:
            return self.objects.pop((kind, name))
        if "deletionTimestamp" not in there["metadata"]:
            there["metadata"] |= {
                "deletionTimestamp": _moment(self.clock() + grace),
                "deletionGracePeriodSeconds": grace,
            }
        return there

    def _store(self, kind: str, name: str, made: Object) -> Object:
        if kind == "secrets":
            data = made.setdefault("data", {})
            for key, value in made.pop("stringData", {}).items():
                data[key] = base64.b64encode(value.encode()).decode()
        self.version += 1
        made["metadata"]["resourceVersion"] = str(self.version)
        self.objects[kind, name] = made
        return made

    def _validate(self, kind: str, body: Object) -> None:
        if self.kubernetes:
            import kubernetes_validate  # pyright: ignore[reportMissingImports]

            try:
                kubernetes_validate.validate(body, self.kubernetes, strict=True)
            except kubernetes_validate.ValidationError as error:
                raise Refusal(422, "Invalid", f"{kind}: {error.message}") from None
        for name in (body["metadata"]["name"], *body["metadata"].get("labels", {}).values()):
            if len(name) > 63:
                raise Refusal(422, "Invalid", f"{name}: must be no more than 63 characters")

    # --- its controllers -------------------------------------------------------------------------

    def settle(self) -> None:
        """Have as many pods as StatefulSets say, and end those that are to end."""
        for name, pod in self.of("pods").items():
            if "deletionTimestamp" in pod["metadata"] and self.ends_pods:
                del self.objects["pods", name]
        for name, made in self.of("statefulsets").items():
            if made["metadata"]["uid"] == "control":
                continue
            pods = {f"{name}-{number}" for number in range(made["spec"]["replicas"])}
            owned = {
                pod for pod, each in self.of("pods").items()
                if each["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
            }  # fmt: skip
            for gone in owned - pods:
                self._delete("pods", gone, None)
            for missing in pods - owned:
                self._make_pod(missing, made)
        uids = {each["metadata"]["uid"] for each in self.of("statefulsets").values()}
        for name, pod in self.of("pods").items():
            if pod["metadata"]["ownerReferences"][0]["uid"] not in uids:
                self._delete("pods", name, None)

    def _make_pod(self, name: str, of: Object) -> None:
        template = copy.deepcopy(of["spec"]["template"])
        pod: Object = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] |= {
            "name": name,
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": of["metadata"]["name"],
                 "uid": of["metadata"]["uid"], "controller": True}
            ],
        }  # fmt: skip
        pod["spec"]["volumes"] += [
            {"name": claim["metadata"]["name"],
             "persistentVolumeClaim": {"claimName": f"{claim['metadata']['name']}-{name}"}}
            for claim in of["spec"]["volumeClaimTemplates"]
        ]  # fmt: skip
        self._create("pods", "", pod)


@asynccontextmanager
async def serving_cluster(cluster: Cluster, certificate: Path, key: Path) -> AsyncGenerator[str]:
    """Serve its API over TLS; the URL."""
    app = web.Application()
    for kind, prefix in GROUPS.items():
        base = f"{prefix}/namespaces/{{namespace}}/{{kind:{kind}}}"
        app.router.add_route("*", base, cluster.handle)
        app.router.add_route("*", f"{base}/{{name}}", cluster.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _status(code: int, reason: str, message: str, headers: dict[str, str]) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason, "message": message}  # fmt: skip
    return web.json_response(text=json.dumps(body), status=code, headers=headers)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
