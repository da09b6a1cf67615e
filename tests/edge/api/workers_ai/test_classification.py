"""Classification and ranking as clients see them, by real encoders with a small vocabulary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from tests.core.encoder.test_classifier import write_classifier
from tests.core.random_encoders import KERNELS
from tests.edge.api.embeddings.small_encoder import CAT, CLS, SEP, THE, write_tokenizer
from tests.edge.support import ACCOUNT

from skerry_core.encoder.encoder import Encoder
from skerry_edge.api.app import create_app
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.text.encoder import EncoderText
from skerry_regions.models.catalog import Catalog, Classification
from skerry_regions.models.local_model import describe
from skerry_regions.models.store import ModelStore
from skerry_regions.node.node import Node
from skerry_regions.region.local import LocalRegion

pytestmark = pytest.mark.anyio

MODEL = "@cf/test/classifier"
MAX_TOKENS = 12
BASE = f"/client/v4/accounts/{ACCOUNT}/ai"
RUN = f"{BASE}/run/{MODEL}"
SAT = CAT + 1
CONTEXTS = [{"text": "the cat"}, {"text": "sat sat"}, {"text": "a b c"}]


def write_model(folder: Path, labels: list[str], **fields: Any) -> Path:
    write_classifier(folder, len(labels))
    config = json.loads((folder / "config.json").read_bytes())
    config["architectures"] = ["BertForSequenceClassification"]
    config["id2label"] = {str(number): label for number, label in enumerate(labels)}
    (folder / "config.json").write_text(json.dumps(config | fields))
    write_tokenizer(folder)
    return folder


@asynccontextmanager
async def serving(folder: Path) -> AsyncGenerator[httpx.AsyncClient]:
    spec = msgspec.structs.replace(describe(folder, MODEL), context_window=MAX_TOKENS)
    files = ModelStore(folder / "home").pull(spec, lambda _what, _share: None)
    node = Node(id="node", region="here", loop=asyncio.get_running_loop())
    node.serve_encoder(spec.id, Encoder.open(files.weights, threads=1, cache_dir=KERNELS))
    tokens = TokenStore(folder / "tokens.json")
    token, _ = tokens.create(account_id=ACCOUNT, now=0)
    edge = Edge(
        catalog=Catalog([spec]),
        texts={},
        encoders={spec.id: EncoderText(files, max_tokens=spec.context_window)},
        region=LocalRegion(node),
        tokens=tokens,
        secret=b"s" * 32,
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(edge)),
        base_url="http://127.0.0.1",
        headers={"authorization": f"Bearer {token}"},
    ) as client:
        yield client
    await node.close()


@pytest.fixture
async def ranker(tmp_path: Path) -> AsyncGenerator[httpx.AsyncClient]:
    async with serving(write_model(tmp_path, ["LABEL_0"])) as client:
        yield client


@pytest.fixture
async def classifier(tmp_path: Path) -> AsyncGenerator[httpx.AsyncClient]:
    async with serving(write_model(tmp_path, ["NEGATIVE", "POSITIVE"])) as client:
        yield client


def logits(folder: Path, texts: list[list[int]], second_starts: list[int] | None = None) -> Any:
    encoder = Encoder.open(folder, threads=1, cache_dir=KERNELS)
    scores = encoder.classify(texts, second_starts=second_starts or ()).astype(np.float64)
    encoder.close()
    return scores


async def test_labels_share_one(classifier: httpx.AsyncClient, tmp_path: Path) -> None:
    reply = await classifier.post(RUN, json={"text": "The cat"})
    assert reply.status_code == 200, reply.text
    result = reply.json()["result"]
    assert [each["label"] for each in result] == ["NEGATIVE", "POSITIVE"]
    [scores] = logits(tmp_path, [[CLS, THE, CAT, SEP]])
    shares = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose([each["score"] for each in result], shares, rtol=1e-9)


async def test_labels_of_their_own(tmp_path: Path) -> None:
    kind = {"problem_type": "multi_label_classification"}
    async with serving(write_model(tmp_path, ["a", "b", "c"], **kind)) as client:
        result = (await client.post(RUN, json={"text": "the cat"})).json()["result"]
    [scores] = logits(tmp_path, [[CLS, THE, CAT, SEP]])
    np.testing.assert_allclose(
        [each["score"] for each in result], 1 / (1 + np.exp(-scores)), rtol=1e-9
    )


async def test_contexts_come_back_ranked(ranker: httpx.AsyncClient, tmp_path: Path) -> None:
    reply = await ranker.post(RUN, json={"query": "the", "contexts": CONTEXTS})
    assert reply.status_code == 200, reply.text
    result = reply.json()["result"]
    assert list(result) == ["response", "usage"]
    texts = [[CLS, THE, SEP, THE, CAT, SEP], [CLS, THE, SEP, SAT, SAT, SEP]]
    scores = 1 / (1 + np.exp(-logits(tmp_path, texts, [3, 3])[:, 0]))
    got = {each["id"]: each["score"] for each in result["response"]}
    np.testing.assert_allclose([got[0], got[1]], scores, rtol=1e-9)
    assert sorted(got.values(), reverse=True) == list(got.values())
    assert result["usage"] == {"prompt_tokens": 19, "total_tokens": 19}


async def test_top_k_keeps_the_best(ranker: httpx.AsyncClient) -> None:
    asked = {"query": "the", "contexts": CONTEXTS}
    everything = (await ranker.post(RUN, json=asked)).json()["result"]["response"]
    best = (await ranker.post(RUN, json={**asked, "top_k": 2})).json()["result"]["response"]
    assert best == everything[:2]
    more = (await ranker.post(RUN, json={**asked, "top_k": 9})).json()["result"]["response"]
    assert more == everything


async def test_many_contexts_take_several_messages(ranker: httpx.AsyncClient) -> None:
    asked = {"query": "the", "contexts": CONTEXTS * 50}
    ranked = (await ranker.post(RUN, json=asked)).json()["result"]["response"]
    scores = {each["id"]: each["score"] for each in ranked}
    assert sorted(scores) == list(range(150))
    assert all(scores[index] == scores[index % 3] for index in scores)
    assert [each["id"] for each in ranked[:50]] == sorted(each["id"] for each in ranked[:50])


async def test_what_is_too_long_is_an_error_or_cut_off(ranker: httpx.AsyncClient) -> None:
    long = {"text": "a b c d e f g h i j k"}
    asked: dict[str, Any] = {"query": "the", "contexts": [{"text": "a"}, long]}
    refused = await ranker.post(RUN, json=asked)
    assert refused.status_code == 413
    assert "contexts[1].text has 15 tokens" in refused.text
    cut = (await ranker.post(RUN, json={**asked, "truncate_inputs": True})).json()["result"]
    assert cut["usage"]["prompt_tokens"] == 5 + MAX_TOKENS
    query = {"query": "a b c d e f g h i", "contexts": CONTEXTS, "truncate_inputs": True}
    crowded = await ranker.post(RUN, json=query)
    assert crowded.status_code == 413
    assert "query leaves no room for a context" in crowded.text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "missing required field query"),
        ({"query": "a"}, "missing required field contexts"),
        ({"query": "", "contexts": CONTEXTS}, "query: Expected str of length >= 1"),
        ({"query": "a", "contexts": []}, "contexts: Expected array of length >= 1"),
        ({"query": "a", "contexts": ["b"]}, "contexts[0]: Expected object, got str"),
        ({"query": "a", "contexts": [{"text": ""}]}, "contexts[0].text: Expected str of length"),
        ({"query": "a", "contexts": CONTEXTS, "top_k": 0}, "top_k: Expected int >= 1"),
        ({"query": "a", "contexts": [{"text": "b"}] * 1001}, "Expected array of length <= 1000"),
    ],
)
async def test_bad_rankings_are_named(
    ranker: httpx.AsyncClient, body: dict[str, Any], reason: str
) -> None:
    reply = await ranker.post(RUN, json=body)
    assert reply.status_code == 400
    [error] = reply.json()["errors"]
    assert error["code"] == 5006
    assert reason in error["message"]


async def test_a_classifier_takes_one_text(classifier: httpx.AsyncClient) -> None:
    for body in ({"text": ["a"]}, {"text": ""}, {"query": "a", "contexts": CONTEXTS}):
        reply = await classifier.post(RUN, json=body)
        assert reply.status_code == 400
        assert "text" in reply.text
    long = {"text": " ".join("abcdefghijkl")}
    assert "text has 14 tokens" in (await classifier.post(RUN, json=long)).text
    cut = await classifier.post(RUN, json={**long, "truncate_inputs": True})
    assert cut.status_code == 200


async def test_a_classifier_makes_neither_vectors_nor_text(classifier: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "a"}
    reply = await classifier.post(f"{BASE}/v1/embeddings", json=asked)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "task_not_supported")
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    reply = await classifier.post(f"{BASE}/v1/chat/completions", json=asked)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "task_not_supported")


async def test_the_model_is_listed_with_its_schema(
    ranker: httpx.AsyncClient, tmp_path: Path
) -> None:
    query = {"task": "Text Classification"}
    [item] = (await ranker.get(f"{BASE}/models/search", params=query)).json()["result"]
    assert item["name"] == MODEL
    properties = {each["property_id"]: each["value"] for each in item["properties"]}
    assert properties["max_input_tokens"] == str(MAX_TOKENS)
    schema = (await ranker.get(f"{BASE}/models/schema", params={"model": MODEL})).json()["result"]
    assert schema["input"]["required"] == ["query", "contexts"]
    assert schema["output"]["required"] == ["response", "usage"]
    async with serving(write_model(tmp_path / "other", ["no", "yes"])) as client:
        schema = (await client.get(f"{BASE}/models/schema", params={"model": MODEL})).json()
    assert schema["result"]["input"]["required"] == ["text"]
    assert schema["result"]["output"]["type"] == "array"


async def test_a_worker_gets_the_bare_result(classifier: httpx.AsyncClient) -> None:
    headers = {"cf-consn-model-id": MODEL}
    reply = await classifier.post("/run?version=3", headers=headers, json={"inputs": {"text": "a"}})
    assert [each["label"] for each in reply.json()] == ["NEGATIVE", "POSITIVE"]


def test_what_the_folder_says_is_read(tmp_path: Path) -> None:
    spec = describe(write_model(tmp_path / "a", ["no", "yes"]), MODEL)
    assert spec.task == "text-classification"
    assert spec.classification == Classification(labels=("no", "yes"))
    assert spec.embedding is None
    assert spec.is_encoder
    several = write_model(tmp_path / "b", ["x", "y"], problem_type="multi_label_classification")
    assert describe(several, MODEL).classification == Classification(
        labels=("x", "y"), multi_label=True
    )
    one = describe(write_model(tmp_path / "c", ["LABEL_0"]), MODEL).classification
    assert one is not None
    assert one.ranks
