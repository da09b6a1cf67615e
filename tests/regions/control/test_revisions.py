"""Many changes at once: all or nothing, one revision, and back again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.regions.control.log.logs import Opener
from tests.regions.control.support import MODEL, Api

from skerry_regions.control.desired.resources import POOL
from skerry_regions.control.errors import Conflict
from skerry_regions.control.planning.platform_topology import platform_topology

pytestmark = pytest.mark.anyio

REGIONS = [{"name": "fra", "iata": "FRA"}, {"name": "gru", "coordinates": [-23.4, -46.5]}]
DECODE = {"name": "decode", "region": "fra", "role": "decode", "model": MODEL, "replicas": 2}
NAP = {"name": "nap", "region": "gru", "role": "hybrid", "max_replicas": 4}
EDGE = {"name": "edge", "region": "fra"}
CHAT = {"name": "chat", "model": MODEL, "pools": ["gru-nap"]}
ALL = {"regions": REGIONS, "pools": [DECODE, NAP], "edges": [EDGE], "deployments": [CHAT]}


@pytest.fixture
async def api(tmp_path: Path, opener: Opener) -> AsyncIterator[Api]:
    api = Api(tmp_path, opener)
    yield api
    await api.close()


async def apply(api: Api, manifest: dict[str, Any], **more: Any) -> dict[str, Any]:
    answer = await api.http.post("/apply", json={"manifest": manifest} | more)
    assert answer.status_code == 200, answer.text
    applied: dict[str, Any] = answer.json()
    return applied


async def rollback(api: Api, revision: int | None = None) -> list[tuple[str, str]]:
    body = {} if revision is None else {"revision": revision}
    answer = await api.http.post("/rollback", json=body)
    assert answer.status_code == 200, answer.text
    return did(answer.json())


def did(applied: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["action"], each["id"]) for each in applied["changes"]]


async def wanted(api: Api) -> dict[str, Any]:
    """Every resource as it is written, by its path; those that go are marked."""
    found = {}
    for name in ("regions", "pools", "edge_nodes", "deployments"):
        for each in (await api.http.get(f"/{name}")).json()["items"]:
            going = each.pop("meta")["deleting"]
            each.pop("status")
            found[f"{name}/{each['id']}"] = "going" if going else each
    return found


async def test_a_manifest_is_one_revision(api: Api) -> None:
    applied = await apply(api, ALL)
    assert did(applied) == [
        ("create", id) for id in ("fra", "gru", "fra-decode", "gru-nap", "edge", "chat")
    ]
    assert (applied["revision"], applied["written"], api.num_changed) == (1, True, 1)
    assert (await api.http.get("/pools/gru-nap")).json()["max_replicas"] == 4
    assert (await api.http.get("/regions/gru")).json()["latitude"] == -23.4
    again = await apply(api, ALL)
    assert (again["changes"], again["revision"]) == ([], 1)
    [entry] = (await api.http.get("/history")).json()["items"]
    assert (entry["revision"], entry["actor"], len(entry["changes"])) == (1, "token-1", 6)


async def test_a_trial_writes_nothing(api: Api) -> None:
    trial = await apply(api, ALL, dry_run=True)
    assert (len(trial["changes"]), trial["written"], trial["revision"]) == (6, False, 0)
    assert await wanted(api) == {}


async def test_one_mistake_and_nothing_is_written(api: Api) -> None:
    lost = DECODE | {"name": "lost", "region": "ams"}
    for manifest, field, message in (
        ({"regions": REGIONS, "pools": [DECODE, lost]}, "pools[1].region", "no region 'ams'"),
        ({"regions": [{"name": "zzz", "iata": "ZZZ"}]}, "regions[0].iata", "not in our list"),
        ({"regions": [{"name": "P_!", "iata": "FRA"}]}, "regions[0].name", "expected a name of"),
        ({"regions": REGIONS[:1] * 2}, "regions[1]", "there twice"),
        ({"regions": REGIONS, "edges": [EDGE | {"tls": {"cert": "/c", "key": "k"}}]},
         "edges[0].tls.key", "regex"),
    ):  # fmt: skip
        answer = await api.http.post("/apply", json={"manifest": manifest})
        error = answer.json()["error"]
        assert (answer.status_code, error["field"]) == (422, f"manifest.{field}"), error
        assert message in error["message"]
    assert await wanted(api) == {}


async def test_how_requests_find_their_way_is_one_resource(api: Api) -> None:
    steer = {"policy": "redirect", "margin": 0.1}
    applied = await apply(api, {"emulate": {"rtt": "links"}, "steer": steer})
    assert did(applied) == [("create", "platform")]
    found = (await api.http.get("/routing/platform")).json()
    assert (found["emulate"], found["steer"], found["router"]) == (
        {"rtt": "links"}, steer | {"drain_seconds": 4.0}, {"candidates": "indexed"},
    )  # fmt: skip
    assert (await apply(api, {"router": {"candidates": "all"}}))["changes"][0]["changes"] == {
        "emulate": [{"rtt": "links"}, None],
        "steer": [found["steer"], None],
        "router": [{"candidates": "indexed"}, {"candidates": "all"}],
    }
    answer = await api.http.post("/routing", json={"name": "other"})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "name")
    assert did(await apply(api, {"regions": REGIONS}, prune=True))[-1] == ("delete", "platform")
    assert (await api.http.get("/routing/platform")).status_code == 404


async def test_links_are_paths_that_edges_know(api: Api) -> None:
    links = [{"between": ["gru", "fra"], "rtt": 0.2, "bandwidth": 1e6}]
    await apply(api, {"regions": REGIONS, "links": links})
    path = {"to": "fra", "rtt": 0.2, "bandwidth": 1e6}
    assert (await api.http.get("/regions/gru")).json()["paths"] == [path]
    told = platform_topology(api.store.desired).link_priors()["fra", "gru"]
    assert (told.rtt, told.bandwidth) == (0.2, 1e6)

    twice = await api.http.patch("/regions/fra", json={"paths": [{"to": "gru"}]})
    assert twice.json()["error"]["field"] == "paths[0].to"
    for wrong, field in (
        ([links[0] | {"between": ["ams", "fra"]}], "links[0].between[0]"),
        ([links[0] | {"between": ["gru", "ams"]}], "regions[1].paths[0].to"),
    ):
        answer = await api.http.post(
            "/apply", json={"manifest": {"regions": REGIONS, "links": wrong}}
        )
        assert answer.json()["error"]["field"] == f"manifest.{field}"


async def test_an_edge_of_a_topology_is_wanted_with_all_that_it_says(api: Api) -> None:
    tls = {"cert": "/c.pem", "key": "/k.pem"}
    edge = EDGE | {"url": "https://ai.example.com", "tls": tls, "placement": "nearest"}
    await apply(api, {"regions": REGIONS, "edges": [edge]})
    found = (await api.http.get("/edge_nodes/edge")).json()
    assert {name: found[name] for name in ("tls_cert", "tls_key", "public_url", "placement")} == {
        "tls_cert": "/c.pem", "tls_key": "/k.pem",
        "public_url": "https://ai.example.com", "placement": "nearest",
    }  # fmt: skip


async def test_what_a_file_no_longer_names_goes_when_asked(api: Api) -> None:
    await apply(api, ALL)
    await api.make("pools", name="mine", region="fra", role="hybrid")
    less = {"regions": REGIONS, "pools": [DECODE]}
    kept = await apply(api, less)
    assert did(kept) == []
    assert sorted(kept["unnamed"]) == ["deployment chat", "edge_node edge", "pool gru-nap"]
    pruned = await apply(api, less, prune=True)
    assert did(pruned) == [("delete", id) for id in ("chat", "gru-nap", "edge")]
    assert (await wanted(api))["pools/fra-mine"] != "going", "what others made is left alone"


async def test_every_revision_can_be_had_again(api: Api) -> None:
    states = [await wanted(api)]
    for change in (
        lambda: apply(api, ALL),
        lambda: api.http.patch("/pools/fra-decode", json={"replicas": 5, "kv_blocks": 64}),
        lambda: apply(api, {"pools": [DECODE | {"weights": "q8_0"}, NAP | {"max_replicas": 9}]}),
        lambda: api.http.delete("/deployments/chat"),
        lambda: apply(api, {"regions": REGIONS, "pools": [NAP]}, prune=True),
    ):
        await change()  # type: ignore[no-untyped-call]
        states.append(await wanted(api))
    last = api.store.desired.revision
    assert last == 5
    for revision in (3, 1, 4, 2, 0, 5, 3):
        await rollback(api, revision)
        now = {path: each for path, each in (await wanted(api)).items() if each != "going"}
        then = {path: each for path, each in states[revision].items() if each != "going"}
        assert now == then, revision


async def test_a_rollback_is_undone_by_a_rollback(api: Api) -> None:
    await apply(api, ALL)
    await api.http.patch("/pools/fra-decode", json={"replicas": 5})
    assert await rollback(api) == [("update", "fra-decode")]
    assert (await api.http.get("/pools/fra-decode")).json()["replicas"] == 2
    assert await rollback(api) == [("update", "fra-decode")]
    assert (await api.http.get("/pools/fra-decode")).json()["replicas"] == 5


async def test_what_is_gone_or_going_comes_back(api: Api) -> None:
    await apply(api, ALL)
    for path in ("deployments/chat", "pools/gru-nap"):
        assert (await api.http.delete(f"/{path}")).status_code == 202
    with api.store.writing() as writing:  # nothing of it runs any more
        writing.remove(POOL, "gru-nap")
    assert await rollback(api, 1) == [("create", "gru-nap"), ("restore", "chat")]
    assert (await wanted(api))["deployments/chat"] != "going"


async def test_tokens_that_were_revoked_stay_so(api: Api) -> None:
    await apply(api, ALL)
    made = await api.make("api_tokens", name="ci")
    assert (await api.http.delete(f"/api_tokens/{made['id']}")).status_code == 204
    assert await rollback(api, 1) == []
    assert api.tokens.published == {}


async def test_revisions_that_there_are_not_are_refused(api: Api) -> None:
    empty = await api.http.post("/rollback", json={})
    assert (empty.status_code, empty.json()["error"]["message"]) == (409, "nothing was changed yet")
    await apply(api, ALL)
    for revision in (2, -1):
        answer = await api.http.post("/rollback", json={"revision": revision})
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, "revision")


async def test_a_state_that_cannot_be_is_not_gone_back_to(api: Api) -> None:
    await apply(api, {"regions": REGIONS})
    await apply(api, {"pools": [DECODE | {"deletion_protection": True}]})
    refused = await api.http.post("/rollback", json={"revision": 1})
    assert refused.status_code == Conflict.status
    assert "deletion_protection" in refused.text
    assert "pools/fra-decode" in await wanted(api)


async def test_history_is_of_one_resource_and_in_pages(api: Api) -> None:
    await apply(api, ALL)
    for replicas in (3, 4, 5):
        await api.http.patch("/pools/fra-decode", json={"replicas": replicas})
    page = (await api.http.get("/history?limit=2")).json()
    assert ([each["revision"] for each in page["items"]], page["next"]) == ([4, 3], 3)
    rest = (await api.http.get("/history?limit=2&before=3")).json()
    assert [each["revision"] for each in rest["items"]] == [2, 1]
    of_edge = (await api.http.get("/history?kind=edge_node&id=edge")).json()["items"]
    assert [[change["id"] for change in each["changes"]] for each in of_edge] == [["edge"]]
