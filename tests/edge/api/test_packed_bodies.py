"""Bodies packed with gzip or deflate, in every dialect; and what only says that it is."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, Deployment, deployed

from skerry_edge.api import edge_request
from skerry_edge.limits import Limits

MESSAGES = [{"role": "user", "content": "hi"}]
PATHS: dict[str, dict[str, Any]] = {
    f"/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}": {"prompt": "hi"},
    "/v1/chat/completions": {"model": MODEL, "messages": MESSAGES},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/messages": {"model": MODEL, "messages": MESSAGES, "max_tokens": 9},
}
CHAT = "/v1/chat/completions"
GZIP, ZLIB = gzip.compress(b"{}", mtime=0), zlib.compress(b"{}")


def bare(plain: bytes) -> bytes:
    """Return what some clients call deflate: zlib's format without its head."""
    return zlib.compress(plain)[2:-4]


def send(edge: Deployment, path: str, body: bytes, coding: str) -> httpx.Response:
    headers = {"content-type": "application/json", "content-encoding": coding}
    return edge.client.post(path, content=body, headers=headers)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("coding", ["gzip", "GZIP", "x-gzip", "deflate", "bare", "identity"])
def test_a_packed_body_is_as_good_as_another(edge: Deployment, path: str, coding: str) -> None:
    plain = json.dumps(PATHS[path]).encode()
    pack = {"identity": bytes, "deflate": zlib.compress, "bare": bare}.get(coding, gzip.compress)
    answer = send(edge, path, pack(plain), "deflate" if coding == "bare" else coding)
    assert (answer.status_code, "Hello" in answer.text) == (200, True), answer.text


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "x-deflate", "*"])
def test_other_codings_are_refused_by_name(edge: Deployment, coding: str) -> None:
    answer = send(edge, CHAT, ZLIB, coding)
    assert answer.status_code == 415
    assert repr(coding) in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        *[("gzip", body) for body in (
            b"{}", b"", b"\x1f\x8b", GZIP[:-1], GZIP + b"x",
            GZIP * 2, GZIP[:-8] + bytes(8), ZLIB,
        )],
        *[("deflate", body) for body in (
            b"{}", b"", b"\x78", ZLIB[:-1], ZLIB + b"x",
            ZLIB[:-4] + bytes(4), GZIP, bare(b"{}")[:-1],
        )],
    ],
)  # fmt: skip
def test_what_is_not_so_coded(edge: Deployment, coding: str, body: bytes) -> None:
    answer = send(edge, CHAT, body, coding)
    assert (answer.status_code, coding in answer.json()["error"]["message"]) == (400, True)


@pytest.mark.parametrize(("coding", "wbits"), [("gzip", 31), ("deflate", 15), ("deflate", -15)])
def test_a_bomb_is_unpacked_no_further_than_the_limit(
    edge: Deployment, coding: str, wbits: int
) -> None:
    """A quarter of a gibibyte in 260 KB."""
    packer = zlib.compressobj(9, wbits=wbits)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(256)) + packer.flush()
    assert len(bomb) < 300_000
    tracemalloc.start()
    try:
        answer = send(edge, CHAT, bomb, coding)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert peak < 6 * edge.edge.limits.body_bytes


def test_what_is_unpacked_for_nothing_is_charged_to_the_tenant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what it holds, not by the little that was sent."""
    monkeypatch.setattr(edge_request, "SECONDS_PER_BYTE", 1e-6)
    body = gzip.compress(json.dumps({"padding": "x" * (2 << 20)}).encode())
    assert len(body) < 5000
    with deployed(tmp_path, Limits(), at_once_seconds=1.0) as edge:
        assert [send(edge, CHAT, body, "gzip").status_code for _ in range(2)] == [400, 429]
