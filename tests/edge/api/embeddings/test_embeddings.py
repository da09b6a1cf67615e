"""Embeddings in the native dialect, by a real encoder with a small vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.edge.api.embeddings.small_encoder import (
    CAT,
    CLS,
    DIMENSIONS,
    MAX_TOKENS,
    MODEL,
    RUN,
    SEP,
    THE,
    client_of,
    spec_of,
)
from tests.edge.support import ACCOUNT

from skerry_core.encoder.encoder import Encoder
from skerry_regions.models.catalog import Embedding
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.anyio


# --- Workers AI ----------------------------------------------------------------------------------


async def test_one_text_is_one_row(client: httpx.AsyncClient, encoder: Encoder) -> None:
    reply = await client.post(RUN, json={"text": "The CAT sat"})
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert (body["success"], body["errors"], body["messages"]) == (True, [], [])
    result = body["result"]
    assert list(result) == ["shape", "data", "pooling", "usage"]
    assert result["shape"] == [1, DIMENSIONS]
    assert result["pooling"] == "mean"
    assert result["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    wanted = encoder.encode([[CLS, THE, CAT, CAT + 1, SEP]])
    np.testing.assert_array_equal(np.array(result["data"], np.float32), wanted)


async def test_texts_keep_their_order(client: httpx.AsyncClient) -> None:
    texts = ["a b c", "the", "a b c d e f g h", "the", "x"]
    rows = (await client.post(RUN, json={"text": texts})).json()["result"]["data"]
    assert len(rows) == 5
    assert rows[1] == rows[3]
    for text, row in zip(texts, rows, strict=True):
        alone = await client.post(RUN, json={"text": [text]})
        assert alone.json()["result"]["data"] == [row]


async def test_contexts_are_ranked_by_a_query(client: httpx.AsyncClient) -> None:
    """The form of Workers AI's bge-m3: cosines of what `text` is answered with."""
    query, contexts = "the cat", ["x y z", "the cat sat", "a", "the cat"]
    body = {"query": query, "contexts": [{"text": each} for each in contexts]}
    result = (await client.post(RUN, json=body)).json()["result"]
    rows = (await client.post(RUN, json={"text": [query, *contexts]})).json()["result"]
    vectors = np.array(rows["data"])
    cosines = vectors[1:] @ vectors[0]
    assert [each["id"] for each in result["response"]] == np.argsort(-cosines).tolist()
    assert result["response"][0] == {"id": 3, "score": pytest.approx(1)}
    for each in result["response"]:
        assert each["score"] == pytest.approx(cosines[each["id"]], abs=1e-6)
    assert result["usage"] == rows["usage"]


async def test_contexts_without_a_query_are_embedded(client: httpx.AsyncClient) -> None:
    body = {"contexts": [{"text": "the cat"}, {"text": "x"}], "pooling": "cls"}
    result = (await client.post(RUN, json=body)).json()["result"]
    asked = {"text": ["the cat", "x"], "pooling": "cls"}
    wanted = (await client.post(RUN, json=asked)).json()["result"]
    assert list(result) == ["response", "shape", "pooling", "usage"]
    assert result == {"response": wanted.pop("data"), **wanted}


async def test_prompts_stand_before_queries_and_documents(
    tmp_path: Path, files: ModelFiles, encoder: Encoder
) -> None:
    """As the model's authors have worded them; texts that are neither stay as they are."""
    prompts = Embedding(
        dimensions=DIMENSIONS, pooling="last", query_prompt="do {instruction}: ", instruction="a",
        document_prompt="the ",
    )  # fmt: skip
    async with client_of(tmp_path, files, spec_of(files, embedding=prompts)) as client:

        async def rows(**body: Any) -> list[list[float]]:
            reply = await client.post(RUN, json=body)
            assert reply.status_code == 200, reply.text
            result = reply.json()["result"]
            assert result["shape"] == [len(result["data"]), DIMENSIONS]
            return result["data"]

        query, other, document = await rows(text=["do a: cat", "do b: cat", "the cat"])
        assert await rows(queries="cat", documents=["cat"]) == [query, document]
        assert await rows(queries=["cat"], instruction="b") == [other]
        assert await rows(documents="cat") == [document]
        (raw,) = await rows(text="cat")
        wanted = encoder.encode([[CLS, CAT, SEP]], pooling="last")
        np.testing.assert_array_equal(np.array([raw], np.float32), wanted)
        ranked = {"query": "cat", "contexts": [{"text": "cat"}], "instruction": "b"}
        (best,) = (await client.post(RUN, json=ranked)).json()["result"]["response"]
        assert best["score"] == pytest.approx(np.dot(other, document), abs=1e-6)
        refused = await client.post(RUN, json={"documents": "cat", "instruction": "b"})
        assert "instruction: belongs to queries" in refused.text
        schema = await client.get(RUN.partition("/run/")[0] + "/models/schema?model=" + MODEL)
        asked = schema.json()["result"]["input"]["properties"]["instruction"]
        assert asked["default"] == "a"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "missing required field text"),
        ({"query": "a"}, "missing required field contexts"),
        ({"query": "a", "text": "b"}, "missing required field contexts"),
        ({"text": "a", "contexts": [{"text": "b"}]}, "text and contexts exclude each other"),
        ({"text": "a", "queries": "b"}, "text and queries and documents exclude each other"),
        ({"queries": ["a", ""]}, "queries"),
        ({"documents": ["a"] * 101}, "documents"),
        ({"queries": "a", "documents": ["a b c d e f g h i j k"]}, "documents[0] has 13 tokens"),
        ({"queries": "a", "instruction": "b"}, "instruction: @cf/test/encoder takes none"),
        ({"query": "a", "contexts": []}, "contexts"),
        ({"contexts": [{"text": "a b c d e f g h i j k"}]}, "contexts[0].text has 13 tokens"),
    ],
)
async def test_what_contexts_cannot_be(
    client: httpx.AsyncClient, body: dict[str, Any], message: str
) -> None:
    refused = await client.post(RUN, json=body)
    assert refused.status_code in (400, 413)
    assert message in refused.json()["errors"][0]["message"]


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
async def test_pooling_is_the_requests(
    client: httpx.AsyncClient, encoder: Encoder, pooling: Any
) -> None:
    result = (await client.post(RUN, json={"text": "cat", "pooling": pooling})).json()["result"]
    assert result["pooling"] == pooling
    wanted = encoder.encode([[CLS, CAT, SEP]], pooling=pooling)
    np.testing.assert_array_equal(np.array(result["data"], np.float32), wanted)


async def test_the_catalog_says_what_nobody_asked_for(
    tmp_path: Path, files: ModelFiles, encoder: Encoder
) -> None:
    raw = Embedding(dimensions=DIMENSIONS, pooling="cls", normalize=False)
    async with client_of(tmp_path, files, spec_of(files, embedding=raw)) as client:
        result = (await client.post(RUN, json={"text": "cat", "pooling": None})).json()["result"]
    assert result["pooling"] == "cls"
    wanted = encoder.encode([[CLS, CAT, SEP]], pooling="cls", normalize=False)
    np.testing.assert_array_equal(np.array(result["data"], np.float32), wanted)


async def test_what_is_too_long_is_an_error_or_cut_off(
    client: httpx.AsyncClient, encoder: Encoder
) -> None:
    fits, long = " ".join("abcdefghij"), " ".join("abcdefghijk")
    assert (await client.post(RUN, json={"text": fits})).status_code == 200
    refused = await client.post(RUN, json={"text": ["a", long]})
    assert refused.status_code == 413
    (error,) = refused.json()["errors"]
    assert error["code"] == 5021
    assert f"text[1] has 13 tokens; {MODEL} takes 12, special ones included." in error["message"]
    assert "`truncate_inputs: true` cuts off" in error["message"]
    cut = await client.post(RUN, json={"text": [long, fits], "truncate_inputs": True})
    assert cut.json()["result"]["data"][0] == cut.json()["result"]["data"][1]
    assert cut.json()["result"]["usage"]["prompt_tokens"] == 24


async def test_far_too_long_texts_are_not_even_tokenised(client: httpx.AsyncClient) -> None:
    reply = await client.post(RUN, json={"text": "a" * (32 * MAX_TOKENS + 1)})
    assert reply.status_code == 413
    assert "has 385 characters, far more than the 12 tokens" in reply.text


async def test_special_tokens_in_a_text_are_text(client: httpx.AsyncClient) -> None:
    body = (await client.post(RUN, json={"text": "[SEP]"})).json()
    assert body["result"]["usage"]["prompt_tokens"] > 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "missing required field text"),
        ({"text": ""}, "text: Expected str of length >= 1"),
        ({"text": []}, "text: Expected array of length >= 1"),
        ({"text": ["a", ""]}, "text[1]: Expected str of length >= 1"),
        ({"text": ["a"] * 101}, "text: Expected array of length <= 100"),
        ({"text": 5}, "text: Expected str | array | null, got int"),
        ({"text": ["a", 5]}, "text[1]: Expected str, got int"),
        ({"text": [["a"]]}, "text[0]: Expected str, got array"),
        ({"text": "a", "pooling": "median"}, "pooling: Invalid enum value 'median'"),
        ({"prompt": "hi"}, "missing required field text"),
    ],
)
async def test_bad_inputs_are_named(
    client: httpx.AsyncClient, body: dict[str, Any], reason: str
) -> None:
    reply = await client.post(RUN, json=body)
    assert reply.status_code == 400
    (error,) = reply.json()["errors"]
    assert error["code"] == 5006
    assert reason in error["message"]


async def test_the_model_can_be_named_in_the_body(client: httpx.AsyncClient) -> None:
    reply = await client.post(
        f"/client/v4/accounts/{ACCOUNT}/ai/run", json={"model": MODEL, "input": {"text": "a"}}
    )
    assert reply.json()["result"]["shape"] == [1, DIMENSIONS]


async def test_a_worker_gets_the_bare_result(client: httpx.AsyncClient) -> None:
    reply = await client.post(
        "/run?version=3", headers={"cf-consn-model-id": MODEL}, json={"inputs": {"text": "a"}}
    )
    assert list(reply.json()) == ["shape", "data", "pooling", "usage"]
