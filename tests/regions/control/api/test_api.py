"""`/control/v1`: writing down what is wanted, and being told what is wrong with it."""

from __future__ import annotations

import dataclasses
import hashlib

import httpx
import jsonschema
import pytest
from tests.regions.control.api.resources import DECODE, FRA
from tests.regions.control.support import ACCOUNT, BY_COLLECTION, MODEL, Api

from skerry_regions.control.api.app import create_app

pytestmark = pytest.mark.anyio


async def test_a_resource_is_read_back_as_it_was_written(api: Api) -> None:
    made = await api.make("regions", **FRA, residency="eu")
    assert made == {
        "name": "fra",
        "iata": "FRA",
        "latitude": None,
        "longitude": None,
        "residency": "eu",
        "draining": False,
        "paths": [],
        "id": "fra",
        "meta": {
            "etag": "1",
            "created_at": "2023-11-14T22:13:20.000Z",
            "updated_at": "2023-11-14T22:13:20.000Z",
            "deleting": False,
        },
        "status": {"phase": "pending", "ready_nodes": 0, "desired_nodes": 0, "conditions": []},
    }
    answer = await api.http.get("/regions/fra")
    assert (answer.json(), answer.headers["etag"]) == (made, '"1"')
    assert api.num_changed == 1


async def test_a_patch_changes_what_it_names(api: Api) -> None:
    await api.make("regions", **FRA)
    pool = await api.make("pools", **DECODE, replicas=2, kv_blocks=64)
    api.clock.now += 1
    answer = await api.http.patch("/pools/fra-decode", json={"replicas": 3, "kv_blocks": None})
    changed = answer.json()
    assert (changed["replicas"], changed["kv_blocks"], changed["model"]) == (3, None, MODEL)
    assert (pool["meta"]["etag"], changed["meta"]["etag"]) == ("2", "3")
    assert changed["meta"]["updated_at"] == "2023-11-14T22:13:21.000Z"


async def test_a_patch_that_changes_nothing_keeps_the_etag(api: Api) -> None:
    await api.make("regions", **FRA)
    answer = await api.http.patch("/regions/fra", json={"iata": "FRA"})
    assert (answer.status_code, answer.headers["etag"]) == (200, '"1"')


async def test_a_stale_etag_changes_nothing(api: Api) -> None:
    await api.make("regions", **FRA)
    fresh = {"if-match": '"1"'}
    stale = {"if-match": '"1"'}
    assert (
        await api.http.patch("/regions/fra", json={"draining": True}, headers=fresh)
    ).status_code == 200
    for method, body in (("PATCH", {"draining": False}), ("DELETE", None)):
        answer = await api.http.request(method, "/regions/fra", json=body, headers=stale)
        assert answer.status_code == 412
        assert answer.json()["error"]["type"] == "stale_etag"
    assert (await api.http.get("/regions/fra")).json()["draining"] is True
    answer = await api.http.patch("/regions/fra", json={}, headers={"if-match": "now"})
    assert answer.status_code == 400


async def test_a_deployment_gives_its_pools_their_model(api: Api) -> None:
    await api.make("regions", **FRA)
    await api.make("pools", name="a", region="fra", role="hybrid")
    await api.make("deployments", name="chat", model=MODEL, pools=["fra-a"])
    assert api.store.desired.model_of("fra-a") == MODEL
    other = {"name": "other", "model": MODEL, "pools": ["fra-a"]}
    assert (await api.http.post("/deployments", json=other)).status_code == 422
    answer = await api.http.patch("/pools/fra-a", json={"model": "@cf/o/o"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "model")
    answer = await api.http.patch("/deployments/chat", json={"model": "@cf/o/o"})
    assert answer.status_code == 200
    assert api.store.desired.model_of("fra-a") == "@cf/o/o"


async def test_a_request_sent_again_is_answered_as_the_first_time(api: Api) -> None:
    key = {"idempotency-key": "k-1"}
    first = await api.http.post("/regions", json=FRA, headers=key)
    again = await api.http.post("/regions", json=FRA, headers=key)
    assert (again.status_code, again.json(), again.headers["etag"]) == (
        201,
        first.json(),
        first.headers["etag"],
    )
    other = await api.http.post("/regions", json=FRA | {"residency": "eu"}, headers=key)
    assert other.status_code == 409
    without = await api.http.post("/regions", json=FRA)
    assert without.status_code == 409
    api.clock.now += 86_401
    await api.http.post("/regions", json={"name": "iad", "iata": "IAD"}, headers={**key})
    assert (await api.http.get("/regions/iad")).status_code == 200, "the key is free again"


async def test_a_tokens_secret_is_told_at_its_creation_only(api: Api) -> None:
    key = {"idempotency-key": "k-1"}
    body = {"name": "ci", "scopes": ["run"]}
    first = (await api.http.post("/api_tokens", json=body, headers=key)).json()
    again = (await api.http.post("/api_tokens", json=body, headers=key)).json()
    assert first == again
    id, token = first["id"], first["secret"]
    secret = token.removeprefix(f"skerry_{id}_")
    assert api.tokens.published == {id: hashlib.sha256(secret.encode()).hexdigest()}
    read = (await api.http.get(f"/api_tokens/{id}")).json()
    assert "secret" not in read
    assert secret.encode() not in api.store.path.read_bytes()

    assert (await api.http.delete(f"/api_tokens/{id}")).status_code == 204
    assert api.tokens.published == {}
    assert (await api.http.get(f"/api_tokens/{id}")).status_code == 404


async def test_pages(api: Api) -> None:
    names = [f"r{number}" for number in range(5)]
    for name in names:
        await api.make("regions", name=name, iata="FRA")
    seen, after = [], ""
    while True:
        page = (await api.http.get(f"/regions?limit=2&after={after}")).json()
        seen += [item["id"] for item in page["items"]]
        if (after := page["next"]) is None:
            break
    assert seen == names
    for query in ("limit=0", "limit=501", "limit=x"):
        assert (await api.http.get(f"/regions?{query}")).status_code == 400


async def test_who_has_no_role_may_not_ask(api: Api) -> None:
    for headers, status in (
        ({"authorization": ""}, 401),
        ({"authorization": "Basic admin"}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Bearer nobody"}, 403),
    ):
        for method, path in (
            ("GET", "/regions"), ("DELETE", "/regions/x"), ("POST", "/pools"), ("GET", "/nowhere"),
            ("TRACE", "/status"), ("GET", "//openapi.json"), ("GET", "/regions/"),
            ("DELETE", "/regions/x/"), ("GET", "/openapi.json/"),
        ):  # fmt: skip
            answer = await api.http.request(method, path, headers=headers)
            assert answer.status_code == status, (method, path)
            assert answer.json()["error"]["type"] in ("unauthorized", "forbidden")
    anonymous = {"authorization": ""}
    assert (await api.http.get("/openapi.json", headers=anonymous)).status_code == 200


async def test_whoever_follows_answers_what_is_written_down(api: Api) -> None:
    await api.make("regions", **FRA)
    where = [""]
    app = create_app(dataclasses.replace(api.control, leader=lambda: where[0]))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://control/control/v1",
        headers={"authorization": "Bearer admin"},
    ) as follower:
        for path in ("/history", "/audit", "/events", "/metrics"):
            assert (await follower.get(path)).status_code == 200
        assert (await follower.get("/history")).json() == (await api.http.get("/history")).json()
        for method, path in (("GET", "/regions"), ("POST", "/regions"), ("GET", "/status")):
            refused = await follower.request(method, path, json={"name": "iad", "iata": "IAD"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "No control plane leads now" in refused.text
        where[0] = "https://other:8788"
        assert "https://other:8788 leads" in (await follower.get("/regions")).text
        stranger = await follower.get("/regions", headers={"authorization": "Bearer x"})
        assert stranger.status_code == 401
        assert "other" not in stranger.text
    assert len((await api.http.get("/regions")).json()["items"]) == 1


async def test_routes_that_are_not_there(api: Api) -> None:
    for method, path, status in (
        ("GET", "/nowhere", 404), ("GET", "/regions/no", 404), ("PATCH", "/regions/no", 404),
        ("DELETE", "/regions/no", 404), ("PUT", "/regions/no", 405), ("DELETE", "/regions", 405),
        ("GET", "/regions/", 404), ("DELETE", "/regions/no/", 404),
    ):  # fmt: skip
        answer = await api.http.request(method, path, json={})
        assert answer.status_code == status, (method, path)
        assert answer.json()["error"]["type"] in ("not_found", "method_not_allowed")


async def test_every_write_is_in_the_audit_log(api: Api) -> None:
    await api.make("regions", **FRA)
    await api.http.patch("/regions/fra", json={"draining": True})
    await api.http.delete("/regions/fra")
    entries = (await api.http.get("/audit")).json()["items"]
    assert [(each["actor"], each["action"], each["revision"]) for each in entries] == [
        ("token-1", "create", 1), ("token-1", "update", 2), ("token-1", "delete", 3),
    ]  # fmt: skip
    assert entries[1]["changes"] == {"draining": [False, True]}
    rest = (await api.http.get(f"/audit?after={entries[1]['sequence']}")).json()["items"]
    assert rest == entries[2:]


async def test_the_platform_at_a_glance(api: Api) -> None:
    await api.make("regions", **FRA)
    status = (await api.http.get("/status")).json()
    assert (status["revision"], status["observed_revision"]) == (1, 0)
    assert status["account_id"] == ACCOUNT
    assert [region["name"] for region in status["regions"]] == ["fra"]


async def test_answers_are_as_the_description_says(api: Api) -> None:
    description = (await api.http.get("/openapi.json")).json()
    await api.make("regions", **FRA)
    await api.make("pools", **DECODE)
    await api.make("edge_nodes", name="edge", region="fra")
    await api.make("deployments", name="chat", model=MODEL, pools=["fra-decode"])
    await api.make("api_tokens", name="ci")
    await api.make("dns_zones", name="example.test", nameservers=[{"name": "ns1"}])
    await api.make("dns_records", zone="example.test", name="@", type="TXT", values=["x"])
    await api.make("routing", steer={"policy": "advise"})
    await api.make("join_tokens", pool="fra-decode")
    paths = [
        path
        for path, operations in description["paths"].items()
        if "{" not in path
        and "/control" in path
        and "application/json"
        in operations.get("get", {"responses": {"200": {"content": {}}}})["responses"]["200"][
            "content"
        ]
    ]
    assert len(paths) == 21
    for path in paths:
        operation = description["paths"][path]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        needed = {"name": "example.test"} if path.endswith("/dns_answer") else {}
        body = (await api.http.get(f"http://control{path}", params=needed)).json()
        jsonschema.validate(body, schema | {"components": description["components"]})
    refused = (await api.http.post("/regions", json={})).json()
    body_schema = {"$ref": "#/components/schemas/ErrorBody"}
    jsonschema.validate(refused, body_schema | {"components": description["components"]})


async def test_an_idempotency_key_is_of_what_is_there_and_not_in_hand(api: Api) -> None:
    key = {"idempotency-key": "k1"}
    made = await api.http.post("/regions", json=FRA, headers=key)
    again = await api.http.post("/regions", json=FRA, headers=key)
    assert (made.status_code, again.json()) == (201, made.json())
    with api.store.writing() as writing:  # deleted, and nothing of it runs any more
        writing.remove(BY_COLLECTION["regions"], "fra")
    api.clock.now += 1
    anew = await api.http.post("/regions", json=FRA, headers=key)
    assert (anew.status_code, anew.json()["meta"]["etag"]) == (201, "3")
    assert (await api.http.get("/regions/fra")).status_code == 200
    assert (await api.http.delete("/idempotency_keys/another")).status_code == 204
    assert (await api.http.post("/regions", json=FRA, headers=key)).json() == anew.json()
    assert (await api.http.delete("/idempotency_keys/k1")).status_code == 204
    taken = await api.http.post("/regions", json=FRA, headers=key)
    assert (taken.status_code, "exists already" in taken.text) == (409, True)


async def test_join_tokens_come_and_go(api: Api) -> None:
    await api.make("regions", **FRA)
    key = {"idempotency-key": "boot-1"}
    body = {"region": "fra", "roles": ["edge"], "max_uses": 3, "name": "edges"}
    made = [(await api.http.post("/join_tokens", json=body, headers=key)).json() for _ in range(2)]
    assert made[0] == made[1]
    assert made[0]["secret"].startswith(f"skjoin_{made[0]['id']}_")
    refused = await api.http.post("/join_tokens", json=body | {"name": "x"}, headers=key)
    assert refused.status_code == 409
    known = {name: value for name, value in made[0].items() if name != "secret"}
    path = f"/join_tokens/{known['id']}"
    assert (await api.http.get(path)).json() == known
    assert (await api.http.get("/join_tokens")).json() == {"items": [known], "next": None}
    assert (await api.http.delete(path)).status_code == 204
    assert (await api.http.get(path)).status_code == 404
    actions = [entry["action"] for entry in (await api.http.get("/audit")).json()["items"]]
    assert actions == ["create", "create", "delete"]


async def test_machines_that_nobody_knows(api: Api) -> None:
    assert (await api.http.get("/machines")).json() == {"items": [], "next": None}
    for method in ("GET", "DELETE"):
        assert (await api.http.request(method, "/machines/m")).status_code == 404
