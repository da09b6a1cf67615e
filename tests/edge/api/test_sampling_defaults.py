"""A model's own sampling defaults, and who may say otherwise."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import ACCOUNT, Deployment, deployed, specs

from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits
from skerry_regions.models.catalog import Catalog, SamplingDefaults
from skerry_regions.wire.protocol import Sampling

OWN = SamplingDefaults(
    temperature=0.25, top_p=0.5, top_k=7, min_p=0.125, typical_p=0.75, repetition_penalty=1.5
)


def catalog(defaults: SamplingDefaults) -> Catalog:
    return Catalog(msgspec.structs.replace(spec, sampling=defaults) for spec in specs())


def use(edge: Deployment, defaults: SamplingDefaults) -> None:
    """Have the catalog say something else, as after a restart."""
    object.__setattr__(edge.edge, "catalog", catalog(defaults))
    edge.edge.__post_init__()


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Deployment]:
    stores = Stores.in_folder(tmp_path / "stores", edge="edge-1")
    with deployed(tmp_path, Limits(), stores=stores, keeps_batches=True) as deployment:
        use(deployment, OWN)
        yield deployment


def values(sampling: Sampling) -> SamplingDefaults:
    return SamplingDefaults(
        **{name: getattr(sampling, name) for name in SamplingDefaults.__struct_fields__}
    )


def ask(edge: Deployment, dialect: str, **body: Any) -> httpx.Response:
    messages = [{"role": "user", "content": "hi"}]
    path, asked = {
        "native": (f"run/{MODEL}", {"prompt": "hi"}),
        "chat": ("v1/chat/completions", {"model": MODEL, "messages": messages}),
        "completions": ("v1/completions", {"model": MODEL, "prompt": "hi"}),
        "responses": ("v1/responses", {"model": MODEL, "input": "hi"}),
        "messages": ("v1/messages", {"model": MODEL, "messages": messages, "max_tokens": 9}),
    }[dialect]
    reply = edge.client.post(f"/client/v4/accounts/{ACCOUNT}/ai/{path}", json=asked | body)
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.parametrize("dialect", ["native", "chat", "completions", "responses", "messages"])
def test_every_dialect_samples_as_the_model_wants(edge: Deployment, dialect: str) -> None:
    ask(edge, dialect)
    assert values(edge.region.submits[0].sampling) == OWN


def test_the_callers_values_win(edge: Deployment) -> None:
    ask(edge, "chat", temperature=0, top_p=1, top_k=-1, min_p=0, typical_p=1, repetition_penalty=1)
    assert values(edge.region.submits[0].sampling) == SamplingDefaults(
        temperature=0, top_p=1, top_k=0, min_p=0, typical_p=1, repetition_penalty=1
    )


def test_a_response_tells_what_it_was_sampled_with(edge: Deployment) -> None:
    told = ask(edge, "responses").json()
    assert (told["temperature"], told["top_p"]) == (0.25, 0.5)


def test_the_schema_shows_them(edge: Deployment) -> None:
    path = f"/client/v4/accounts/{ACCOUNT}/ai/models/schema"
    schema = edge.client.get(path, params={"model": MODEL}).json()["result"]["input"]
    shown = {name: schema["properties"][name]["default"] for name in OWN.stated()}
    assert shown == OWN.stated()
    use(edge, SamplingDefaults())
    schema = edge.client.get(path, params={"model": MODEL}).json()["result"]["input"]
    assert schema["properties"]["temperature"]["default"] == 0.6
    assert schema["properties"]["top_k"]["default"] is None


def test_queued_work_keeps_the_defaults_of_its_submission(edge: Deployment) -> None:
    batches = edge.edge.batches
    assert batches is not None
    reply = edge.client.post(f"{edge.run_path}?queueRequest=true", json={"prompt": "hi"})
    assert reply.status_code == 200, reply.text
    use(edge, SamplingDefaults(temperature=5.0))
    edge.settle()
    assert values(edge.region.submits[0].sampling) == OWN


def test_a_retry_with_the_same_key_keeps_the_defaults_of_the_first(edge: Deployment) -> None:
    edge.region.script = lambda submit: [RuntimeError("lost")]
    headers = {"idempotency-key": "k"}
    assert edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=headers).is_error
    edge.region.script = lambda submit: answer("again")
    use(edge, SamplingDefaults(temperature=5.0))
    assert edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=headers).is_success
    first, second = edge.region.submits
    assert first.sampling == second.sampling
    assert values(second.sampling) == OWN


def test_keys_of_the_version_before_are_kept(tmp_path: Path) -> None:
    """Its table has no column for defaults: those of today hold."""
    folder = tmp_path / "stores"
    with deployed(tmp_path, Limits(), stores=Stores.in_folder(folder, edge="e")) as edge:
        headers = {"idempotency-key": "k"}
        edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=headers)
    (file,) = [path for path in folder.rglob("*idempotency*") if path.suffix not in (".wal",)][:1]
    with sqlite3.connect(file) as database:
        database.execute("ALTER TABLE keys DROP COLUMN defaults")
        database.execute("PRAGMA user_version = 0")
    database.close()
    with deployed(tmp_path / "again", Limits(), stores=Stores.in_folder(folder, edge="e")) as edge:
        other = edge.client.post(edge.run_path, json={"prompt": "other"}, headers=headers)
        assert other.status_code == 422
        same = edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=headers)
        assert same.is_success
        assert json.loads(same.content)["success"] is True
