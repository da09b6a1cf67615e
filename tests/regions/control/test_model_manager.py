"""Models over the control API: pulled from a hub on loopback, entered, cancelled, taken out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.regions.control.support import MODEL, Api, caller
from tests.regions.models.hub_server import LocalHub, Repo, serving
from tests.regions.tiny_model import write_openable

from skerry_regions.control.reconcile.model_jobs import MAX_RUNNING
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.hub_catalog import HubCatalog

pytestmark = pytest.mark.anyio

MIB = 1 << 20
TINY = {"source": "hf:me/tiny", "name": "@cf/me/tiny"}


@pytest.fixture
def weights(tmp_path: Path) -> bytes:
    tail = random.Random(1).randbytes(17 * MIB)  # behind the tensors: three pieces in all
    return write_openable(tmp_path / "made.gguf").read_bytes() + tail


@pytest.fixture
def hub(weights: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with serving(LocalHub({"me/tiny": Repo({"tiny-Q4_K_M.gguf": weights})})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_HOME", "/nonexistent")
        yield hub


@pytest.fixture
async def api(tmp_path: Path, hub: LocalHub) -> AsyncIterator[Api]:
    (tmp_path / "files").mkdir()
    api = Api(tmp_path)
    yield api
    hub.release.set()
    await api.close()


async def install(api: Api, **asked: Any) -> dict[str, Any]:
    answer = await api.http.post("/models", json=asked)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def job_of(api: Api, id: str) -> dict[str, Any]:
    jobs = (await api.http.get("/model_jobs")).json()["items"]
    [job] = [each for each in jobs if each["id"] == id]
    return dict(job)


async def until(api: Api, id: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Look at a job until something holds of it."""
    for _ in range(6000):
        job = await job_of(api, id)
        if holds(job):
            return job
        await asyncio.sleep(0.01)
    raise TimeoutError(id)


async def ended(api: Api, id: str) -> tuple[str, str]:
    """Wait for the end of a job; return its state and message."""
    job = await until(api, id, lambda job: job["ended_at"] is not None)
    return job["state"], job["message"]


async def models(api: Api, **query: str) -> dict[str, Any]:
    listed = (await api.http.get("/models", params={"limit": "500"} | query)).json()["items"]
    return {each["id"]: each for each in listed}


async def test_what_is_known_is_listed_with_what_can_be_pulled(api: Api) -> None:
    catalog = {spec.id for spec in Catalog.load()}
    assert (await models(api)).keys() == catalog
    known = await models(api, known="1")
    assert known.keys() == catalog | {each.id for each in HubCatalog.load()}
    assert {each["state"] for each in known.values()} == {"absent"}
    api.callers["eyes"] = caller("eyes", "viewer")
    reader = {"authorization": "Bearer eyes"}
    assert (await api.http.get(f"/models/{MODEL}", headers=reader)).json()["id"] == MODEL
    assert (await api.http.get("/models/no/such", headers=reader)).status_code == 404
    refused = await api.http.post("/models", json=TINY, headers=reader)
    assert refused.status_code == 403
    assert (await api.http.get("/model_jobs")).json()["items"] == []


async def test_a_pull_shows_its_progress_is_cancelled_and_goes_on(
    api: Api, hub: LocalHub, weights: bytes
) -> None:
    hub.hold_after = (
        len(weights) + MIB - (128 << 10)
    )  # with the header: the end of one or two pieces
    job = await install(api, **TINY)
    assert (job["action"], job["model"], job["state"]) == ("pull", "@cf/me/tiny", "running")
    await asyncio.to_thread(hub.held.wait, 60)
    seen = await until(api, job["id"], lambda job: 0 < job["share"] < 1)
    assert (seen["doing"], seen["num_bytes"]) == ("downloading tiny-Q4_K_M.gguf", len(weights))
    twice = await api.http.post("/models", json=TINY)
    assert (twice.status_code, job["id"] in twice.text) == (409, True)
    cancelled = await api.http.delete(f"/model_jobs/{job['id']}")
    assert (cancelled.status_code, cancelled.json()["state"]) == (202, "cancelling")
    hub.release.set()
    assert await ended(api, job["id"]) == (
        "cancelled", "@cf/me/tiny: cancelled; what has arrived is kept for a week",
    )  # fmt: skip
    assert "@cf/me/tiny" not in await models(api)

    first = len(hub.ranges())
    again = await install(api, **TINY)
    state, message = await ended(api, again["id"])
    assert (state, message.startswith("licence apache-2.0, from hub:me/tiny@")) == ("done", True)
    fetched = [each for each in hub.ranges()[first:] if each != f"bytes=0-{MIB - 1}"]
    assert 1 <= len(fetched) <= 2, "of three pieces one was there"
    model = (await models(api))["@cf/me/tiny"]
    assert (model["state"], model["num_bytes"], model["is_own"]) == (
        "installed", len(weights), True,
    )  # fmt: skip
    assert (await api.http.delete("/models/@cf/me/tiny")).status_code == 204
    assert "@cf/me/tiny" not in await models(api)
    assert list((api.models.home / "models" / ".blobs").iterdir()) == []
    assert [(each.actor, each.action, each.id) for each in api.store.audit(0, 10)] == [
        ("token-1", "pull", "@cf/me/tiny"),
        ("token-1", "cancel", "@cf/me/tiny"),
        ("token-1", "pull", "@cf/me/tiny"),
        ("token-1", "delete", "@cf/me/tiny"),
    ]


async def test_what_a_hub_refuses_is_said(api: Api) -> None:
    job = await install(api, source="hf:me/none", name="@cf/me/none")
    state, message = await ended(api, job["id"])
    assert (state, "me/none" in message) == ("failed", True)
    for asked, field in (
        ({"source": "@cf/no/such"}, "source"),
        ({"source": "hf:nothing"}, "source"),
        ({"source": "hf:me/tiny", "name": "a b"}, "name"),
        ({"source": "hf:me/tiny", "name": MODEL}, "source"),
        ({"source": ""}, "source"),
        ({"source": "hf:me/tiny", "action": "steal"}, "action"),
        ({"source": MODEL, "action": "add"}, "name"),
    ):
        refused = await api.http.post("/models", json=asked)
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, field), asked


async def test_files_come_from_folders_that_are_configured_alone(api: Api, tmp_path: Path) -> None:
    outside = write_openable(tmp_path / "outside.gguf")
    (tmp_path / "files" / "link.gguf").symlink_to(outside)
    for path in (outside, tmp_path / "files" / "link.gguf", tmp_path / "files" / ".." / "no.gguf"):
        asked = {"action": "add", "source": str(path), "name": "@cf/me/own"}
        refused = await api.http.post("/models", json=asked)
        assert (refused.status_code, refused.json()["error"]["field"]) == (403, "source")
    inside = write_openable(tmp_path / "files" / "own.gguf")
    job = await install(api, action="add", source=str(inside), name="@cf/me/own")
    assert await ended(api, job["id"]) == ("done", "")
    alias = await install(api, action="add", source="@cf/me/own", name="@cf/me/other")
    assert await ended(api, alias["id"]) == ("done", "another name of @cf/me/own")
    own = (await models(api))["@cf/me/own"]
    assert (own["state"], own["aliases"]) == ("installed", ["@cf/me/other"])
    missing = await install(
        api, action="add", source=str(inside.with_name("no.gguf")), name="@cf/me/no"
    )
    assert (await ended(api, missing["id"]))[0] == "failed"
    assert (await api.http.delete("/models/@cf/me/own")).status_code == 204
    assert inside.exists(), "it was used where it lies"


async def test_what_a_pool_wants_is_neither_removed_nor_cancelled(api: Api, hub: LocalHub) -> None:
    hub.hold_after = 9 * MIB
    job = await install(api, **TINY)
    await api.make("regions", name="fra", iata="FRA")
    await api.make("pools", name="p", region="fra", role="hybrid", model="@cf/me/tiny")
    refused = await api.http.delete(f"/model_jobs/{job['id']}")
    assert (refused.status_code, "fra-p" in refused.text) == (409, True)
    assert (await api.http.delete("/model_jobs/99")).status_code == 404
    hub.release.set()
    assert (await ended(api, job["id"]))[0] == "done"
    assert (await models(api))["@cf/me/tiny"]["wanted_by"] == ["fra-p"]
    refused = await api.http.delete("/models/@cf/me/tiny")
    assert (refused.status_code, "fra-p" in refused.text) == (409, True)
    assert (await models(api))["@cf/me/tiny"]["state"] == "installed"


async def test_few_jobs_run_at_once(api: Api, hub: LocalHub, weights: bytes) -> None:
    hub.hold_after = 0
    for number in range(MAX_RUNNING):
        await install(api, source="hf:me/tiny", name=f"@cf/me/tiny-{number}")
    refused = await api.http.post("/models", json=TINY)
    assert (refused.status_code, "wait for one" in refused.text) == (409, True)
    for job in (await api.http.get("/model_jobs")).json()["items"]:
        assert (await api.http.delete(f"/model_jobs/{job['id']}")).status_code == 202
    hub.release.set()
    for job in (await api.http.get("/model_jobs")).json()["items"]:
        assert (await ended(api, job["id"]))[0] in ("cancelled", "done")
