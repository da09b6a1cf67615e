"""OpenAI's files and batches, by the real client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import Batch
from tests.edge.scripted_region import MODEL, Hold
from tests.edge.support import ACCOUNT, Deployment, eventually

URL = "/v1/chat/completions"


@pytest.fixture
def client(edge: Deployment) -> Iterator[openai.OpenAI]:
    base_url = f"http://127.0.0.1:{edge.port}/client/v4/accounts/{ACCOUNT}/ai/v1"
    with openai.OpenAI(api_key=edge.token, base_url=base_url, max_retries=0) as client:
        yield client


def lines(*bodies: dict[str, Any], url: str = URL) -> bytes:
    return b"".join(
        json.dumps({
            "custom_id": f"c{i}", "method": "POST", "url": url, "body": {"model": MODEL, **body},
        }).encode() + b"\n"
        for i, body in enumerate(bodies)
    )  # fmt: skip


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def create(client: openai.OpenAI, content: bytes, *, endpoint: Any = URL) -> Batch:
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"k": "v"}
    )


def ended(client: openai.OpenAI, id: str) -> Batch:
    def found() -> Batch | None:
        batch = client.batches.retrieve(id)
        return None if batch.status in ("in_progress", "finalizing", "cancelling") else batch

    batch: Batch = eventually(found)
    return batch


def rows(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    text = client.files.content(file_id).text
    told = [json.loads(line) for line in text.splitlines()]
    assert len({each["id"] for each in told}) == len(told)
    return {each["custom_id"]: each for each in told}


def test_a_batch_of_chats(client: openai.OpenAI, edge: Deployment) -> None:
    batch = create(client, lines(chat("a"), chat("b"), chat("c", temperature=99)))
    assert (batch.object, batch.endpoint, batch.completion_window) == ("batch", URL, "24h")
    assert batch.status == "in_progress"
    assert batch.metadata == {"k": "v"}
    assert batch.expires_at == batch.created_at + 24 * 3600
    done = ended(client, batch.id)
    assert done.status == "completed"
    assert done.completed_at
    counts = done.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1)
    output = rows(client, done.output_file_id)
    assert set(output) == {"c0", "c1"}
    response = output["c0"]["response"]
    assert response["status_code"] == 200
    assert response["body"]["choices"][0]["message"]["content"] == "Hello"
    assert response["request_id"] in response["body"]["id"]
    assert output["c0"]["error"] is None
    errors = rows(client, done.error_file_id)
    assert errors["c2"]["response"]["status_code"] == 400
    assert errors["c2"]["response"]["body"]["error"]["param"] == "temperature"
    assert {each.priority for each in edge.region.submits} == {"batch"}


@pytest.mark.parametrize(
    ("endpoint", "body", "object"),
    [
        ("/v1/completions", {"prompt": "x"}, "text_completion"),
        ("/v1/responses", {"input": "x"}, "response"),
    ],
)
def test_other_endpoints(
    client: openai.OpenAI, endpoint: str, body: dict[str, Any], object: str
) -> None:
    batch = create(client, lines(body, url=endpoint), endpoint=endpoint)
    done = ended(client, batch.id)
    assert done.status == "completed"
    assert done.error_file_id is None
    assert rows(client, done.output_file_id)["c0"]["response"]["body"]["object"] == object


def test_a_file_with_mistakes_fails(client: openai.OpenAI) -> None:
    batch = create(client, lines(chat("a")) + b"no json\n")
    assert batch.status == "failed"
    assert batch.failed_at
    assert batch.errors is not None
    [error] = batch.errors.data or []
    assert (error.code, error.line) == ("invalid_json_line", 2)
    assert ended(client, batch.id).status == "failed"
    assert client.batches.retrieve(batch.id).output_file_id is None


def test_cancelling(client: openai.OpenAI, edge: Deployment) -> None:
    edge.region.script = lambda submit: [Hold()]
    batch = create(client, lines(*[chat(str(i)) for i in range(20)]))
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    done = ended(client, batch.id)
    assert done.status == "cancelled"
    assert done.output_file_id is None
    errors = rows(client, done.error_file_id)
    assert len(errors) == 20
    assert errors["c7"]["error"]["code"] == "batch_cancelled"
    assert client.batches.cancel(batch.id).status == "cancelled"


def test_batches_are_listed(client: openai.OpenAI) -> None:
    made = [create(client, lines(chat("x"))).id for _ in range(3)]
    page = client.batches.list(limit=2)
    assert [each.id for each in page.data] == made[:0:-1]
    assert page.has_more
    listed = [each.id for each in client.batches.list(limit=2)]  # pages by itself
    assert listed[:3] == made[::-1]
    for id in made:
        ended(client, id)


def test_files(client: openai.OpenAI) -> None:
    content = lines(chat("x"))
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.object, file.bytes, file.filename) == ("file", len(content), "in.jsonl")
    assert (file.purpose, file.status) == ("batch", "processed")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == content
    assert next(iter(client.files.list(limit=1))).id == file.id
    assert client.files.list(purpose="batch_output", limit=1).data != [file]
    assert client.files.delete(file.id).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)


def test_what_callers_get_wrong(client: openai.OpenAI, edge: Deployment) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose"):
        client.files.create(file=("a", b"x"), purpose="assistants")
    file = client.files.create(file=("in.jsonl", b"{}"), purpose="batch").id
    for wrong in (
        {"input_file_id": "file-none"},
        {"endpoint": "/v1/images"},
        {"completion_window": "1y"},
        {"completion_window": "999h"},
    ):
        asked: Any = {
            "input_file_id": file, "endpoint": URL, "completion_window": "24h", **wrong
        }  # fmt: skip
        with pytest.raises(openai.BadRequestError, match=next(iter(wrong))):
            client.batches.create(**asked)
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")
    with pytest.raises(openai.NotFoundError):
        client.batches.cancel("batch_none")
    with pytest.raises(openai.BadRequestError, match="limit"):
        client.files.list(limit=0).data  # noqa: B018
    path = f"/client/v4/accounts/{ACCOUNT}/ai/v1/files"
    for body, kind in (
        (b"{}", "application/json"),
        (b"x", "multipart/form-data"),
        (b"x", "multipart/form-data; boundary=y"),
        (b"--y\r\n\r\nx\r\n--y--\r\n", "multipart/form-data; boundary=y"),
    ):
        response = edge.client.post(path, content=body, headers={"content-type": kind})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_a_name_from_outside_is_only_a_name(client: openai.OpenAI) -> None:
    file = client.files.create(file=("../../etc/passwd" + "x" * 300, b"x"), purpose="batch")
    assert len(file.filename) <= 255
    assert client.files.content(file.id).read() == b"x"


def test_nobody_finds_anothers(client: openai.OpenAI, edge: Deployment) -> None:
    batch = create(client, lines(chat("x")))
    token, _ = edge.edge.tokens.create(account_id="e" * 32, now=0)
    stranger = client.with_options(api_key=token, base_url=f"http://127.0.0.1:{edge.port}/v1")
    assert stranger.files.list().data == []
    assert stranger.batches.list().data == []
    with pytest.raises(openai.NotFoundError):
        stranger.batches.retrieve(batch.id)
    with pytest.raises(openai.NotFoundError):
        stranger.files.content(batch.input_file_id)
    with pytest.raises(openai.BadRequestError):
        stranger.batches.create(
            input_file_id=batch.input_file_id, endpoint=URL, completion_window="24h"
        )
    ended(client, batch.id)
