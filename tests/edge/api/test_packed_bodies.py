"""Bodies packed with gzip, in every dialect; and what only says that it is."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from typing import Any

import httpx
import pytest
from tests.edge.support import ACCOUNT, MODEL, Deployment

MESSAGES = [{"role": "user", "content": "hi"}]
PATHS: dict[str, dict[str, Any]] = {
    f"/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}": {"prompt": "hi"},
    "/v1/chat/completions": {"model": MODEL, "messages": MESSAGES},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/messages": {"model": MODEL, "messages": MESSAGES, "max_tokens": 9},
}
CHAT = "/v1/chat/completions"


def send(edge: Deployment, path: str, body: bytes, coding: str) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": coding}
    return edge.client.post(path, content=body, headers=headers)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip", "identity"])
def test_a_packed_body_is_as_good_as_another(edge: Deployment, path: str, coding: str) -> None:
    plain = json.dumps(PATHS[path]).encode()
    body = plain if coding == "identity" else gzip.compress(plain)
    answer = send(edge, path, body, coding)
    assert (answer.status_code, "Hello" in answer.text) == (200, True), answer.text


@pytest.mark.parametrize("coding", ["br", "deflate", "zstd", "gzip, gzip", "*"])
def test_other_codings_are_refused_by_name(edge: Deployment, coding: str) -> None:
    answer = send(edge, CHAT, zlib.compress(b"{}"), coding)
    assert answer.status_code == 415
    assert repr(coding) in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"{}", b"", b"\x1f\x8b", gzip.compress(b"{}")[:-1], gzip.compress(b"{}") + b"x",
        gzip.compress(b"{}") * 2, gzip.compress(b"{}")[:-8] + bytes(8), zlib.compress(b"{}"),
    ],
)  # fmt: skip
def test_what_is_no_gzip(edge: Deployment, body: bytes) -> None:
    answer = send(edge, CHAT, body, "gzip")
    assert (answer.status_code, "gzip" in answer.json()["error"]["message"]) == (400, True)


def test_a_bomb_is_unpacked_no_further_than_the_limit(edge: Deployment) -> None:
    """A quarter of a gibibyte in 260 KB."""
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(256)) + packer.flush()
    assert len(bomb) < 300_000
    tracemalloc.start()
    try:
        answer = send(edge, CHAT, bomb, "gzip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert peak < 6 * edge.edge.limits.body_bytes
