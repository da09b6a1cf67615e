"""The control plane's routes, attacked over a real socket: with odd ids, paths and bodies.

Whoever asks, nothing is granted that the table of rights does not grant, nothing is redirected, and
nothing is an error of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from tests.edge.serving import serving
from tests.regions.control.support import ACCOUNT, Api, caller

from skerry_edge.limits import Limits
from skerry_regions.access import ROLES
from skerry_regions.control.api.app import create_app
from skerry_regions.control.api.operations import OPERATIONS

OTHER = "b" * 32
IDS = (
    "..", "%2e%2e", "%2f", "..%2f..%2fregions%2ffra", "%00", "a" * 4000, "%ff", "%20", "*", "-1",
    "fra%2f", "fra;x", "{id}", "'%20OR%201=1--", "%0d%0aX:%20y",
)  # fmt: skip
"""In place of an id in a path."""
PATHS = (
    "//control/v1/regions", "/control//v1/regions", "/control/v1/../v1/regions", "/healthz/",
    "/healthz/../control/v1/regions", "/healthz%2f..%2fcontrol%2fv1%2fregions",
    "/control/v1/openapi.json/../regions", "/control/v1/terraform/states/../../regions",
    "/control/v1/terraform/states/%2e%2e/%2e%2e/regions", "/control/v1/regions/",
    "/control/v1/regions/fra/", "/CONTROL/V1/regions", "/control/v1/regions;x",
    "/control/v1/regions%00", "/control/v1/nodes/..%2f..%2fmetrics/metrics",
)  # fmt: skip
"""That are near to a route and are none."""
BODIES: dict[str, bytes] = {
    "nothing": b"", "a list": b"[]", "a number beyond all": b"1e999", "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000, "broken UTF-8": b'{"name":"\xff"}',
    "half a surrogate": b'{"name":"\\ud800"}', "NaN": b'{"name":"q","per_day":NaN}',
    "infinity": b'{"name":"q","per_day":1e400}',
    "digits": b'{"name":"q","per_day":' + b"9" * 4000 + b"}",
    "no day": b'{"name":"q","expires_at":"9999-99-99T00:00:00Z"}',
    "before all": b'{"name":"q","expires_at":"0001-01-01T00:00:00+14:00"}',
    "many models": json.dumps({"name": "q", "models": [str(n) for n in range(50_000)]}).encode(),
    "many keys": json.dumps({f"k{n}": 1 for n in range(50_000)}).encode(),
    "another's": json.dumps({"name": "q", "account_id": ACCOUNT, "role": "operator"}).encode(),
    "a parent": b'{"name":"q","parent":"0123456789abcdef"}',
    "a prototype": b'{"__proto__":{"role":"operator"},"name":"q"}',
}  # fmt: skip


@dataclass(frozen=True)
class Attacked:
    """A control plane with one region and one token of the platform's own."""

    api: Api
    port: int
    token: str

    def status(self, method: str, target: str, bearer: str, body: bytes = b"{}") -> int:
        """Send a request as it is, past what clients make of paths."""
        head = f"{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        head += f"authorization: Bearer {bearer}\r\n" if bearer else ""
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as link:
            link.sendall(head.encode("latin-1") + body)
            answer = b""
            with contextlib.suppress(ConnectionResetError):  # behind an answer to half a body
                while piece := link.recv(65536):
                    answer += piece
        return int(answer.split(b" ", 2)[1])

    def held(self) -> object:
        return self.api.store.desired.records, dict(self.api.tokens.published)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    api = Api(tmp_path_factory.mktemp("control"))
    for role in ROLES:
        api.callers[f"{role}-b"] = caller(f"{role}-b", role, OTHER)
    api.callers["viewer-a"] = caller("viewer-a", "viewer")
    with serving(create_app(api.control), Limits(drain_seconds=1)) as port:
        headers = {"authorization": "Bearer admin"}
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}/control/v1", headers=headers, trust_env=False
        ) as operator:
            assert operator.post("/regions", json={"name": "fra", "iata": "FRA"}).is_success
            made = operator.post("/api_tokens", json={"name": "ours"}).json()
        yield Attacked(api, port, made["id"])
    asyncio.run(api.close())


@pytest.mark.parametrize("bearer", ["", "wrong", "nobody", "viewer-a", "developer-b", "operator-b"])
def test_odd_ids_lead_nowhere(attacked: Attacked, bearer: str) -> None:
    before = attacked.held()
    found: dict[tuple[str, str], int] = {}
    for each in OPERATIONS:
        if "{" not in each.path or "terraform" in each.path:
            continue
        for id in (*IDS, attacked.token):
            path = each.path.replace("{id}", id).replace("{key}", id)
            if id == attacked.token and (bearer == "viewer-a" or "api_tokens" not in path):
                continue  # it may read its own account's
            found[each.method, path] = attacked.status(each.method, path, bearer)
    refusals = {400, 401, 403, 404, 405, 409}
    assert {case: status for case, status in found.items() if status not in refusals} == {}
    assert len(found) > 200
    assert attacked.held() == before


@pytest.mark.parametrize("bearer", ["", "developer-b", "viewer-a", "admin"])
def test_paths_that_are_near_to_a_route_are_none(attacked: Attacked, bearer: str) -> None:
    """What was found: one with a slash behind it was redirected, whoever asked by whatever name."""
    refused = {"": {400, 401}, "admin": {400, 404, 405}}.get(bearer, {400, 403, 404, 405})
    for path in PATHS:
        if not bearer and "/terraform/states/" in path:
            continue  # public: it says that they are gone
        for method in ("GET", "HEAD", "DELETE", "PUT", "TRACE", "OPTIONS"):
            status = attacked.status(method, path, bearer)
            assert status in refused, (method, path, status)


@pytest.mark.parametrize("name", BODIES)
def test_bodies_that_make_no_token(attacked: Attacked, name: str) -> None:
    before = attacked.held()
    for each in OPERATIONS:
        if each.method in ("POST", "PATCH") and "terraform" not in each.path:
            path = each.path.replace("{id}", attacked.token)
            status = attacked.status(each.method, path, "developer-b", BODIES[name])
            assert 400 <= status < 500, (each.method, path, status)
    assert attacked.held() == before


def test_a_body_is_bounded(attacked: Attacked) -> None:
    body = b"[" + b" " * (8 << 20)
    assert attacked.status("POST", "/control/v1/api_tokens", "developer-b", body) == 413


def test_an_exceptions_text_never_reaches_a_caller(
    attacked: Attacked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has an id, by which an operator finds it in the log."""

    def broken(*args: object, **more: object) -> None:
        raise RuntimeError("the secret of another tenant")

    monkeypatch.setattr(attacked.api.store, "audit", broken)
    answer = httpx.get(
        f"http://127.0.0.1:{attacked.port}/control/v1/audit",
        headers={"authorization": "Bearer admin"}, trust_env=False,
    )  # fmt: skip
    assert answer.status_code == 500
    assert "secret of another" not in answer.text
    said = answer.json()["error"]
    error_id = said["message"].rpartition(": ")[2]
    assert (said["type"], len(error_id)) == ("internal", 16)
    assert f"error {error_id}: GET '/control/v1/audit' failed" in caplog.text
    assert "the secret of another tenant" in caplog.text
