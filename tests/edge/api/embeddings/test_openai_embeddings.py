"""Embeddings in OpenAI's dialect, what is listed and counted of them, and what is kept."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.edge.api.embeddings.small_encoder import (
    CAT,
    CLS,
    DIMENSIONS,
    MAX_TOKENS,
    MODEL,
    RUN,
    SEP,
    THE,
    WORDS,
    client_of,
    spec_of,
)
from tests.edge.support import ACCOUNT

from skerry_core.encoder.encoder import Encoder
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.ledger.stores import Stores
from skerry_edge.ledger.usage_report import journals, totals
from skerry_edge.limits import Limits
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.anyio

V1 = f"/client/v4/accounts/{ACCOUNT}/ai/v1/embeddings"


def unpacked(item: dict[str, Any]) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(item["embedding"], validate=True), "<f4")


# --- OpenAI --------------------------------------------------------------------------------------


async def test_openai_floats_and_base64_are_the_same_numbers(
    client: httpx.AsyncClient, encoder: Encoder
) -> None:
    asked = {"model": MODEL, "input": ["the cat", "a"]}
    floats = (await client.post(V1, json={**asked, "encoding_format": "float"})).json()
    packed = (await client.post(V1, json={**asked, "encoding_format": "base64"})).json()
    assert list(floats) == ["object", "data", "model", "usage"]
    assert (floats["object"], floats["model"]) == ("list", MODEL)
    assert floats["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    wanted = encoder.encode([[CLS, THE, CAT, SEP], [CLS, WORDS.index("a"), SEP]])
    for index, (one, other) in enumerate(zip(floats["data"], packed["data"], strict=True)):
        assert (one["object"], one["index"], other["index"]) == ("embedding", index, index)
        np.testing.assert_array_equal(np.array(one["embedding"], np.float32), wanted[index])
        np.testing.assert_array_equal(unpacked(other), wanted[index])


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("the cat", ["the cat"]),
        (["the cat"], ["the cat"]),
        ([CLS, THE, CAT, SEP], ["the cat"]),
        ([[CLS, THE, CAT, SEP], [CLS, CAT, SEP]], ["the cat", "cat"]),
    ],
)
async def test_openai_forms_of_input(client: httpx.AsyncClient, given: Any, texts: Any) -> None:
    items = (await client.post(V1, json={"model": MODEL, "input": given})).json()["data"]
    wanted = (await client.post(RUN, json={"text": texts})).json()["result"]["data"]
    assert [item["embedding"] for item in items] == wanted


async def test_many_inputs_take_several_messages(client: httpx.AsyncClient) -> None:
    texts = ["a", "b", "c"] * 50
    items = (await client.post(V1, json={"model": MODEL, "input": texts})).json()["data"]
    assert [item["index"] for item in items] == list(range(150))
    assert all(items[i]["embedding"] == items[i % 3]["embedding"] for i in range(150))


@pytest.mark.parametrize(
    ("body", "code", "param", "reason"),
    [
        ({}, "invalid_input", None, "missing required field input"),
        ({"input": ""}, "invalid_input", "input", "input[0] is empty"),
        ({"input": []}, "invalid_input", "input", "Expected array of length >= 1"),
        ({"input": [[]]}, "invalid_input", "input", "input[0] is empty"),
        ({"input": ["a"] * 2049}, "invalid_input", "input", "2049 texts, at most 2048 at once"),
        ({"input": ["a", 1]}, "invalid_input", "input[1]", "cannot be mixed"),
        ({"input": [1 << 40]}, "invalid_input", "input", "is not a token id below 101"),
        ({"input": [-1]}, "invalid_input", "input", "is not a token id below 101"),
        ({"input": "a", "dimensions": 5}, "invalid_input", "dimensions", "has 96, and cannot"),
        ({"input": "a", "encoding_format": "hex"}, "invalid_input", "encoding_format", "'hex'"),
        ({"input": [1] * 13}, "context_length_exceeded", "input", "input[0] has 13 tokens"),
        ({"input": "a b c d e f g h i j k"}, "context_length_exceeded", "input", "13 tokens"),
        ({"input": "a", "model": "@cf/no/such"}, "model_not_found", "model", "No such model"),
    ],
)
async def test_openai_errors(
    client: httpx.AsyncClient, body: dict[str, Any], code: str, param: str | None, reason: str
) -> None:
    reply = await client.post(V1, json={"model": MODEL, **body})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["type"] == "invalid_request_error"
    assert reason in error["message"]


async def test_a_token_embeds_by_the_models_that_it_was_given(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    tokens = TokenStore(tmp_path / "tokens.json")
    for pattern, status in (("@cf/test/*", 200), ("@cf/o/*", 403)):
        token, _ = tokens.create(account_id=ACCOUNT, models=(pattern,), now=0)
        headers = {"authorization": f"Bearer {token}"}
        for path, body in ((V1, {"model": MODEL, "input": "a"}), (RUN, {"text": "a"})):
            assert (await client.post(path, json=body, headers=headers)).status_code == status


async def test_the_models_own_dimensions_may_be_asked_for(client: httpx.AsyncClient) -> None:
    asked = {"model": MODEL, "input": "a", "dimensions": DIMENSIONS, "user": "me", "new": 1}
    assert (await client.post(V1, json=asked)).status_code == 200


async def test_an_encoder_does_not_chat(client: httpx.AsyncClient) -> None:
    chat = f"/client/v4/accounts/{ACCOUNT}/ai/v1/chat/completions"
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    reply = await client.post(chat, json=asked)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "task_not_supported"
    assert f"The model {MODEL} is for text-embeddings; it makes no text." in reply.text


# --- around it -----------------------------------------------------------------------------------


async def test_the_edge_bounds_what_is_in_progress(tmp_path: Path, files: ModelFiles) -> None:
    async with client_of(tmp_path, files, spec_of(files), Limits(max_requests=1)) as client:
        replies = await asyncio.gather(
            *(client.post(RUN, json={"text": "a b c"}) for _ in range(8))
        )
        statuses = sorted(reply.status_code for reply in replies)
        assert statuses[0] == 200
        assert statuses[-1] == 429
        assert (await client.post(RUN, json={"text": "a"})).status_code == 200


async def test_the_model_is_listed_with_what_it_makes(client: httpx.AsyncClient) -> None:
    base = f"/client/v4/accounts/{ACCOUNT}/ai"
    (item,) = (
        await client.get(f"{base}/models/search", params={"task": "Text Embeddings"})
    ).json()["result"]
    assert item["name"] == MODEL
    assert item["task"]["name"] == "Text Embeddings"
    properties = {each["property_id"]: each["value"] for each in item["properties"]}
    assert properties["output_dimensions"] == str(DIMENSIONS)
    assert properties["max_input_tokens"] == str(MAX_TOKENS)
    assert [each["unit"] for each in properties["price"]] == ["per M input tokens"]
    assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == [MODEL]
    schema = (await client.get(f"{base}/models/schema", params={"model": MODEL})).json()["result"]
    asks = jsonschema.Draft202012Validator(schema["input"])
    for body, is_valid in (
        ({"text": "a"}, True),
        ({"queries": "a", "documents": ["b"]}, True),
        ({"documents": "b"}, True),
        ({"text": "a", "documents": "b"}, False),
        ({"contexts": [{"text": "a"}], "queries": "b"}, False),
        ({}, False),
    ):
        assert asks.is_valid(body) == is_valid
    assert "instruction" not in schema["input"]["properties"]
    assert schema["input"]["properties"]["pooling"]["default"] == "mean"
    whole = {"$schema": jsonschema.Draft202012Validator.META_SCHEMA["$id"], **schema["output"]}
    validator = jsonschema.Draft202012Validator(whole)
    for body in (
        {"text": "a"},
        {"contexts": [{"text": "a"}]},
        {"query": "b", "contexts": [{"text": "a"}]},
    ):
        validator.validate((await client.post(RUN, json=body)).json()["result"])
    assert not validator.is_valid({"data": [[1.0]]})


async def test_usage_is_counted(client: httpx.AsyncClient) -> None:
    await client.post(RUN, json={"text": ["the cat", "a"]})
    text = (await client.get("/metrics")).text
    (line,) = [
        line
        for line in text.splitlines()
        if "prompt_tokens_total" in line and MODEL in line and not line.startswith("#")
    ]
    assert line.endswith(" 7")


# --- what is kept and counted --------------------------------------------------------------------


async def test_vectors_are_kept_if_asked_and_counted_once(
    tmp_path: Path, files: ModelFiles
) -> None:
    stores = Stores.in_folder(tmp_path / "stores", edge="e")
    cached, keyed = {"cf-aig-cache-ttl": "60"}, {"idempotency-key": "k"}
    spec = spec_of(files)
    async with client_of(tmp_path, files, spec, stores=stores) as client:

        async def status(path: str, headers: dict[str, str], **body: Any) -> str | None:
            reply = await client.post(path, json=body, headers=headers)
            assert reply.status_code == 200, reply.text
            told.append(reply.json())
            return reply.headers.get("cf-aig-cache-status")

        told: list[Any] = []
        assert await status(RUN, cached, text="the cat") == "MISS"
        assert await status(RUN, cached, text="the cat") == "HIT"
        assert told[0] == told[1]
        assert await status(RUN, cached, text="the cat", pooling="cls") == "MISS"
        assert await status(RUN, {}, text="the cat") is None
        assert await status(V1, cached, model=MODEL, input="the cat") == "HIT"
        assert await status(V1, keyed, model=MODEL, input="cat") is None
        assert await status(V1, keyed, model=MODEL, input="cat") is None
        assert told[-1] == told[-2]
        body = {"model": MODEL, "input": "the"}
        assert (await client.post(V1, json=body, headers=keyed)).status_code == 422
        too_long = {"text": "cat " * MAX_TOKENS}
        assert (await client.post(RUN, json=too_long)).status_code != 200
    await asyncio.to_thread(stores.close)
    with journals([tmp_path / "stores" / "usage.db"]) as database:
        (total,) = totals(database)
    assert (total.requests, total.completed, total.cached_responses) == (6, 4, 2)
    assert total.prompt_tokens == 4 + 4 + 4 + 3
