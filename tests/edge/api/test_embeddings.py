"""Embeddings as clients of both dialects see them, by a real encoder with a small vocabulary."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.core.random_encoders import CONFIG, KERNELS, write_encoder
from tests.edge.support import ACCOUNT
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from skerry_core.encoder.encoder import Encoder
from skerry_edge.api.app import create_app
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.ledger.stores import Stores
from skerry_edge.ledger.usage_report import journals, totals
from skerry_edge.limits import Limits
from skerry_edge.text.encoder import EncoderText
from skerry_regions.models.catalog import Catalog, Embedding, ModelSpec
from skerry_regions.models.local_model import describe
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.store import ModelStore
from skerry_regions.node.node import Node
from skerry_regions.region.local import LocalRegion

pytestmark = pytest.mark.anyio

MODEL = "@cf/test/encoder"
MAX_TOKENS = 12
DIMENSIONS: int = CONFIG["hidden_size"]
RUN = f"/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}"
V1 = f"/client/v4/accounts/{ACCOUNT}/ai/v1/embeddings"
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *"abcdefghijklmnopqrstuvwxyz",
    "the",
    "cat",
    "sat",
    "[",
]
CLS, SEP, THE, CAT = 2, 3, WORDS.index("the"), WORDS.index("cat")


def write_tokenizer(folder: Path) -> None:
    """A tokenizer that states a length and padding, as published ones do."""
    tokenizer = Tokenizer(
        models.WordPiece({word: id_ for id_, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """An installed encoder."""
    folder = write_encoder(tmp_path_factory.mktemp("encoder"))
    write_tokenizer(folder)
    store = ModelStore(tmp_path_factory.mktemp("home"))
    return store.pull(describe(folder, MODEL), lambda _what, _share: None)


@pytest.fixture(scope="module")
def encoder(files: ModelFiles) -> Generator[Encoder]:
    encoder = Encoder.open(files.weights, threads=1, cache_dir=KERNELS)
    yield encoder
    encoder.close()


def spec_of(files: ModelFiles, **changes: Any) -> ModelSpec:
    spec = describe(files.weights, MODEL)
    return msgspec.structs.replace(spec, context_window=MAX_TOKENS, **changes)


@asynccontextmanager
async def client_of(
    folder: Path,
    files: ModelFiles,
    spec: ModelSpec,
    limits: Limits | None = None,
    stores: Stores | None = None,
) -> AsyncGenerator[httpx.AsyncClient]:
    node = Node(id="node", region="here", loop=asyncio.get_running_loop())
    node.serve_encoder(spec.id, Encoder.open(files.weights, threads=1, cache_dir=KERNELS))
    tokens = TokenStore(folder / "tokens.json")
    token, _ = tokens.create(account_id=ACCOUNT, scopes=("run", "read", "metrics"), now=0)
    edge = Edge(
        catalog=Catalog([spec]),
        texts={},
        encoders={spec.id: EncoderText(files, max_tokens=spec.context_window)},
        region=LocalRegion(node),
        tokens=tokens,
        secret=b"s" * 32,
        limits=limits or Limits(),
        admission=Admission(max_requests=(limits or Limits()).max_requests),
        stores=stores or Stores(),
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(edge)),
        base_url="http://127.0.0.1",
        headers={"authorization": f"Bearer {token}"},
    ) as client:
        yield client
    await node.close()


@pytest.fixture
async def client(tmp_path: Path, files: ModelFiles) -> AsyncGenerator[httpx.AsyncClient]:
    async with client_of(tmp_path, files, spec_of(files)) as client:
        yield client


def unpacked(item: dict[str, Any]) -> NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(item["embedding"], validate=True), "<f4")


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
