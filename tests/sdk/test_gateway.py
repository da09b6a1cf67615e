"""Options of a gateway as headers, and the catalog: what is sent, what comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.sdk.platform import ACCOUNT, Platform
from tests.sdk.recorded_shapes import MODELS, NATIVE

from skerry import InternalError, InvalidInput
from skerry._catalog import MAX_PAGES, all_models
from skerry._gateway import Gateway
from skerry.tasks import Model, ModelSchema

MODEL = "@test/vendor/native"


def test_every_option_is_a_header() -> None:
    gateway = Gateway(
        id="mine",
        skip_cache=True,
        cache_ttl=60,
        cache_key="k",
        metadata={"user": "Zoë", "n": 1, "ok": True, "none": None},
        collect_log=False,
        event_id="e",
        request_timeout=1.5,
    )
    assert gateway.headers() == {
        "cf-aig-gateway-id": "mine",
        "cf-aig-skip-cache": "true",
        "cf-aig-cache-ttl": "60",
        "cf-aig-cache-key": "k",
        "cf-aig-metadata": '{"user":"Zo\\u00eb","n":1,"ok":true,"none":null}',
        "cf-aig-collect-log": "false",
        "cf-aig-event-id": "e",
        "cf-aig-request-timeout": "1500",
    }
    assert Gateway().headers() == {}


@pytest.mark.parametrize(
    "options",
    [
        {"cache_key": "a\r\nx: y"},
        {"cache_key": "ü"},
        {"id": " a"},
        {"id": "x" * 4097},
        {"metadata": {"a": float("nan")}},
        {"metadata": {"a": object()}},
    ],
)
def test_what_no_header_can_carry(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="gateway: "):
        Gateway(**options).headers()


def test_a_gateway_is_the_client_with_more_headers(platform: Platform) -> None:
    with platform.ai() as ai:
        cached = ai.gateway("mine", cache_ttl=60)
        assert cached.run(MODEL, {"prompt": "x"}) == NATIVE
        cached.close()  # which leaves the connections to their owner
        assert ai.run(MODEL, {"prompt": "x"}) == NATIVE
    with_gateway, without = platform.seen
    assert with_gateway.headers["cf-aig-gateway-id"] == "mine"
    assert with_gateway.headers["cf-aig-cache-ttl"] == "60"
    own = [name for name in without.headers if name.startswith("cf-aig")]
    assert own == ["cf-aig-request-timeout"]  # of every call that is not streamed
    assert with_gateway.client_port == without.client_port


def test_an_async_gateway(platform: Platform) -> None:
    async def call() -> Any:
        async with platform.async_ai() as ai:
            return await ai.gateway(skip_cache=True).run(MODEL, {"prompt": "x"})

    assert asyncio.run(call()) == NATIVE
    assert platform.seen[0].headers["cf-aig-skip-cache"] == "true"


def test_all_pages_of_the_catalog(platform: Platform) -> None:
    with platform.ai() as ai:
        models = ai.models(search="vendor", task="Text Generation")
    assert models == MODELS
    assert all(isinstance(model, Model) for model in models)
    assert models[0].name == MODELS[0]["name"]
    paths = [seen.raw_path.decode() for seen in platform.seen]
    search = f"/client/v4/accounts/{ACCOUNT}/ai/models/search"
    assert paths == [search] * 3
    assert [seen.query["page"] for seen in platform.seen] == ["1", "2", "3"]
    assert platform.seen[0].query["search"] == "vendor"
    assert platform.seen[0].query["task"] == "Text Generation"
    assert "author" not in platform.seen[0].query


def test_the_catalog_and_a_schema_async(platform: Platform) -> None:
    async def call() -> tuple[list[Model], ModelSchema]:
        async with platform.async_ai() as ai:
            return await ai.models(), await ai.schema(MODEL, max_retries=0)

    models, schema = asyncio.run(call())
    assert models == MODELS
    assert isinstance(schema, ModelSchema)
    assert schema.input == {"title": MODEL}
    assert platform.seen[-1].query == {"model": MODEL}


def test_a_schema(platform: Platform) -> None:
    with platform.ai() as ai:
        assert ai.schema(MODEL).output == {"type": "object"}


def test_a_list_without_an_end_is_given_up() -> None:
    asked: list[dict[str, str]] = []

    def page(query: dict[str, str]) -> Any:
        asked.append(query)
        return [{"name": "again"}]
        yield

    with pytest.raises(InternalError, match="more than 1000 pages"):
        list(all_models(page, {}))
    assert len(asked) == MAX_PAGES


def test_a_list_that_is_none_is_an_error() -> None:
    def page(query: dict[str, str]) -> Any:
        return {"name": "again"}
        yield

    with pytest.raises(InternalError, match="is no list"):
        list(all_models(page, {}))
