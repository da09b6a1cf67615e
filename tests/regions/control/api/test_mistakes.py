"""What `/control/v1` refuses to write down, and says beforehand of what will be written."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tests.regions.control.api.resources import DECODE, FRA
from tests.regions.control.support import MODEL, Api, caller

pytestmark = pytest.mark.anyio

INVALID: list[tuple[str, dict[str, Any], str]] = [
    ("regions", {"iata": "FRA"}, "name"),
    ("regions", {"name": "Fra", "iata": "FRA"}, "name"),
    ("regions", {"name": "x"}, "iata"),
    ("regions", {"name": "x", "iata": "QQQ"}, "iata"),
    ("regions", {"name": "x", "latitude": 1.0}, "longitude"),
    ("regions", {"name": "x", "latitude": 91.0, "longitude": 0.0}, "latitude"),
    ("regions", {"name": "x", "iata": "FRA", "colour": "red"}, "colour"),
    ("pools", DECODE | {"region": "iad"}, "region"),
    ("pools", DECODE | {"role": "both"}, "role"),
    ("pools", DECODE | {"replicas": -1}, "replicas"),
    ("pools", DECODE | {"replicas": 1.5}, "replicas"),
    ("pools", DECODE | {"replicas": 1, "max_replicas": 2}, "replicas"),
    ("pools", DECODE | {"min_replicas": 1}, "min_replicas"),
    ("pools", DECODE | {"min_replicas": 3, "max_replicas": 2}, "min_replicas"),
    ("pools", DECODE | {"file_tier": "1 GB"}, "file_tier"),
    ("edge_nodes", {"name": "e", "region": "fra", "host": "*"}, "host"),
    ("edge_nodes", {"name": "e", "region": "fra", "host": "http://localhost"}, "host"),
    ("edge_nodes", {"name": "e", "region": "fra", "host": "0.0.0.0", "port": 8787}, "port"),
    ("edge_nodes", {"name": "e", "region": "fra", "port": 70000}, "port"),
    ("edge_nodes", {"name": "e", "region": "fra", "hosts": ["http://a"]}, "hosts[0]"),
    ("regions", {"name": "r", "iata": "AMS", "paths": [{"to": "no"}]}, "paths[0].to"),
    ("regions", {"name": "r", "iata": "AMS", "paths": [{"to": "fra"}] * 2}, "paths[1].to"),
    ("regions", {"name": "r", "iata": "AMS", "paths": [{"to": "fra", "rtt": 0}]}, "paths[0].rtt"),
    ("edge_nodes", {"name": "e", "region": "fra", "tls_cert": "/c"}, "tls_key"),
    ("edge_nodes", {"name": "e", "region": "fra", "tls_key": "/c"}, "tls_cert"),
    ("edge_nodes", {"name": "e", "region": "fra", "tls_key": "c"}, "tls_key"),
    ("edge_nodes", {"name": "e", "region": "fra", "public_url": "https://a/b"}, "public_url"),
    ("edge_nodes", {"name": "e", "region": "fra", "placement": "best"}, "placement"),
    ("edge_nodes", {"name": "e", "region": "fra", "port": 8787}, "port"),
    ("deployments", {"name": "d", "model": MODEL, "pools": []}, "pools"),
    ("deployments", {"name": "d", "model": MODEL, "pools": ["fra-no"]}, "pools[0]"),
    ("deployments", {"name": "d", "model": MODEL, "pools": ["fra-p", "fra-p"]}, "pools[1]"),
    ("deployments", {"name": "d", "model": MODEL, "pools": ["fra-p"]}, "pools"),
    ("deployments", {"name": "d", "model": "@cf/o/o", "pools": ["fra-d"]}, "pools[0]"),
    ("api_tokens", {"name": "t", "role": "viewer", "scopes": ["run"]}, "scopes"),
    ("api_tokens", {"name": "t", "role": "root"}, "role"),
    ("api_tokens", {"name": "t", "role": "operator", "account_id": "b" * 32}, "role"),
    ("api_tokens", {"name": "t", "models": []}, "models"),
    ("api_tokens", {"name": "t", "models": ["@cf/*/x"]}, "models[0]"),
    ("api_tokens", {"name": "t", "per_day": -1}, "per_day"),
    ("api_tokens", {"name": "t", "expires_at": "tomorrow"}, "expires_at"),
    ("api_tokens", {"name": "t", "expires_at": "2027-02-30T00:00:00Z"}, "expires_at"),
    ("api_tokens", {"name": "t", "parent": "0123456789abcdef"}, "parent"),
    ("api_tokens", {"name": "t", "scopes": ["run", "run"]}, "scopes[1]"),
    ("api_tokens", {"name": "t", "scopes": ["root"]}, "scopes[0]"),
    ("api_tokens", {"name": "t", "account_id": "me"}, "account_id"),
]


@pytest.mark.parametrize(("collection", "values", "field"), INVALID)
async def test_a_mistake_is_named_by_its_path(
    api: Api, collection: str, values: dict[str, Any], field: str
) -> None:
    await api.make("regions", **FRA)
    await api.make("pools", name="p", region="fra", role="prefill", model=MODEL)
    await api.make("pools", name="d", region="fra", role="decode", model=MODEL)
    await api.make("edge_nodes", name="other", region="fra", port=8787)
    before = api.store.desired
    answer = await api.http.post(f"/{collection}", json=values)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field), answer.text
    assert api.store.desired is before


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000])
async def test_a_body_that_is_no_object_is_refused(api: Api, body: bytes) -> None:
    answer = await api.http.post("/regions", content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "malformed")


async def test_what_names_and_places_a_resource_never_changes(api: Api) -> None:
    await api.make("regions", **FRA)
    await api.make("regions", name="iad", iata="IAD")
    await api.make("pools", **DECODE)
    for field, value in (("name", "d"), ("region", "iad"), ("role", "prefill")):
        answer = await api.http.patch("/pools/fra-decode", json={field: value})
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)


async def test_names_are_taken_once(api: Api) -> None:
    await api.make("regions", **FRA)
    await api.make("regions", name="fra-a", iata="FRA")
    await api.make("pools", name="a-b", region="fra", role="hybrid")
    for collection, values in (
        ("regions", FRA),
        ("pools", {"name": "b", "region": "fra-a", "role": "hybrid"}),
        ("edge_nodes", {"name": "fra-a-b", "region": "fra"}),
    ):
        answer = await api.http.post(f"/{collection}", json=values)
        assert (answer.status_code, answer.json()["error"]["field"]) == (409, "name"), values


async def test_what_is_used_stays(api: Api) -> None:
    await api.make("regions", **FRA)
    await api.make("pools", **DECODE)
    await api.make("deployments", name="chat", model=MODEL, pools=["fra-decode"])
    refused = await api.http.delete("/pools/fra-decode")
    assert refused.status_code == 409
    assert "deployment 'chat'" in refused.json()["error"]["message"]
    refused = await api.http.delete("/regions/fra")
    assert "pool 'fra-decode'" in refused.json()["error"]["message"]

    answers = [
        await api.http.delete(f"/{path}")
        for path in ("deployments/chat", "pools/fra-decode", "regions/fra", "regions/fra")
    ]
    assert [answer.status_code for answer in answers] == [202] * 4
    assert (await api.http.get("/pools/fra-decode")).json()["meta"]["deleting"] is True
    answer = await api.http.patch("/pools/fra-decode", json={"replicas": 2})
    assert answer.status_code == 409
    assert (await api.http.post("/pools", json=DECODE)).status_code == 409


async def test_a_protected_pool_is_not_deleted(api: Api) -> None:
    await api.make("regions", **FRA)
    await api.make("pools", **DECODE, deletion_protection=True)
    assert (await api.http.delete("/pools/fra-decode")).status_code == 409
    await api.http.patch("/pools/fra-decode", json={"deletion_protection": False})
    assert (await api.http.delete("/pools/fra-decode")).status_code == 202


# --- checks of what is written later -------------------------------------------------------------

NOT_LISTED = "the airport 'QQQ' is not in our list; give latitude and longitude"
NO_MODEL = "No such model: @cf/none/such."
PLANNED: list[tuple[str, dict[str, Any], list[str], str, str]] = [
    ("region", {"name": "x", "iata": "QQQ"}, [], "spec.iata", NOT_LISTED),
    ("region", {"iata": "QQQ"}, ["name"], "spec.iata", NOT_LISTED),
    (
        "region", {"name": "x", "iata": "ams"}, [], "spec.iata",
        "iata: expected an airport's three capital letters, such as FRA",
    ),
    ("pool", DECODE | {"replicas": -1}, ["kv_blocks"], "spec.replicas",
     "replicas: Expected `int` >= 0"),
    ("pool", DECODE | {"size": 3}, ["threads"], "spec.size", "size: there is no such field"),
    ("pool", DECODE | {"model": "@cf/none/such"}, [], "spec.model", NO_MODEL),
    ("deployment", {"name": "d", "model": "@cf/none/such"}, ["pools"], "spec.model", NO_MODEL),
    (
        "dns_zone", {"name": "a.test", "nameservers": [{"name": 3}]}, ["nets"],
        "spec.nameservers[0].name", "nameservers: [0].name: Expected `str`, got `int`",
    ),
    ("pool", {"name": "p"}, [], "spec.region", "region: the field is required"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "spec", "unknown", "field", "message"), PLANNED)
async def test_what_could_never_be_written_is_refused_before(
    api: Api, kind: str, spec: dict[str, Any], unknown: list[str], field: str, message: str
) -> None:
    answer = await api.http.post("/validate", json={"kind": kind, "spec": spec, "unknown": unknown})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"] == {"type": "invalid", "message": message, "field": field}


async def test_a_check_passes_what_is_not_there_or_not_known_yet_and_writes_nothing(
    api: Api,
) -> None:
    """The region of the pool may be written first; a viewer may ask."""
    api.callers["viewer"] = caller("token-3", "viewer")
    viewer = {"authorization": "Bearer viewer"}
    for kind, spec, unknown in [
        ("region", {"iata": "QQQ", "longitude": 3.5}, ["name", "latitude"]),
        ("region", FRA, []),
        ("pool", DECODE, []),
        ("pool", {"name": "p", "role": "decode"}, ["region", "model"]),
    ]:
        body = {"kind": kind, "spec": spec, "unknown": unknown}
        answer = await api.http.post("/validate", json=body, headers=viewer)
        assert answer.status_code == 204, answer.text
    assert api.store.desired.revision == 0
    assert api.num_changed == 0


def test_types_of_requests_are_worked_out_before_threads_decode_them() -> None:
    """Two threads that do so at once crash msgspec 0.22. In a process that has decoded none."""
    program = """
import sys, msgspec
from skerry_regions.control.api import operations
from skerry_regions.control.desired.resources import KINDS
class Fresh(msgspec.Struct):
    pass
called = []
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "get_class_annotations":
        called.append(1)
def decode(type):
    try:
        msgspec.json.decode(b"{}", type=type)
    except msgspec.ValidationError:
        pass
sys.setprofile(note)
for kind in KINDS:
    decode(kind.spec)
num_late = len(called)
decode(Fresh)
print(num_late, len(called))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1"], done.stderr
