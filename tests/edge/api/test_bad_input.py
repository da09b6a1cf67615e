"""Bad input through a real edge over a real engine: a documented answer, and the pool whole after.

`test_native` and `test_openai` look at every field and sentence; here it is what each kind of
mistake leaves behind in the engine: nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.edge.api.gated_platform import Platform, platform
from tests.edge.byte_text import CONTEXT
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, UNSERVED, asking, events, eventually

BASE = f"/client/v4/accounts/{ACCOUNT}/ai"
RUN = f"{BASE}/run/{MODEL}"
CHAT = f"{BASE}/v1/chat/completions"
COMPLETE = f"{BASE}/v1/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    yield from platform(tmp_path_factory.mktemp("edge"))


@pytest.fixture
def whole(running: Platform) -> Iterator[Platform]:
    """Before and after each test the engine works, and holds nothing."""
    yield running
    running.gate.opened.set()
    running.assert_whole()
    good = running.send(RUN, {"prompt": "x", "max_tokens": 3})
    assert good.status_code == 200, good.text
    running.assert_whole()


NATIVE: dict[str, tuple[Any, int, int, str]] = {
    "neither prompt nor messages": ({}, 400, 5006, "neither"),
    "both": ({"prompt": "x", "messages": HI}, 400, 5006, "both"),
    "empty messages": ({"messages": []}, 400, 5006, "length >= 1"),
    "empty prompt": ({"prompt": ""}, 400, 5006, "length >= 1"),
    "prompt of another type": ({"prompt": 5}, 400, 5006, "prompt"),
    "content of another type": ({"messages": [{"role": "user", "content": 5}]}, 400, 5006, "str"),
    "an array": (["prompt"], 400, 5006, "object"),
    "over-long prompt": ({"prompt": "x" * CONTEXT}, 413, 5021, "512 tokens"),
    "over-long in characters": ({"prompt": "x" * 40 * CONTEXT}, 413, 5021, "20480 characters"),
    "prompt and max_tokens": ({"prompt": "x", "max_tokens": 505}, 413, 5021, "At most 493"),
    "huge max_tokens": ({"prompt": "x", "max_tokens": 1 << 40}, 400, 5006, "max_tokens"),
    "no max_tokens": ({"prompt": "x", "max_tokens": 0}, 400, 5006, "max_tokens"),
    "temperature too high": ({"prompt": "x", "temperature": 5.1}, 400, 5006, "temperature"),
    "temperature below 0": ({"prompt": "x", "temperature": -0.1}, 400, 5006, "temperature"),
    "top_p of 0": ({"prompt": "x", "top_p": 0}, 400, 5006, "top_p"),
    "typical_p of 0": ({"prompt": "x", "typical_p": 0}, 400, 5006, "typical_p"),
    "top_k of 0": ({"prompt": "x", "top_k": 0}, 400, 5006, "top_k"),
    "penalty too high": ({"prompt": "x", "repetition_penalty": 9}, 400, 5006, "repetition_penalty"),
    "negative seed": ({"prompt": "x", "seed": -1}, 400, 5006, "seed"),
    "NaN": (b'{"prompt":"x","temperature":NaN}', 400, 3003, "not valid JSON"),
    "Infinity": (b'{"prompt":"x","top_p":Infinity}', 400, 3003, "not valid JSON"),
    "beyond doubles": (b'{"prompt":"x","temperature":1e999}', 400, 5006, "temperature"),
    "invalid JSON": (b'{"prompt": ', 400, 3003, "not valid JSON"),
    "no body": (b"", 400, 3003, "empty"),
    "invalid UTF-8": (b'{"prompt":"\xff"}', 400, 3003, "not UTF-8"),
    "lone surrogate": (b'{"prompt":"\\ud800"}', 400, 3003, "not valid JSON"),
}


@pytest.mark.parametrize("mistake", NATIVE)
@pytest.mark.parametrize("stream", [False, True])
def test_native(whole: Platform, mistake: str, stream: bool) -> None:
    body, status, number, words = NATIVE[mistake]
    if stream and isinstance(body, dict):
        body = {**body, "stream": True}
    reply = whole.send(RUN, body)
    assert reply.status_code == status, reply.text
    [error] = reply.json()["errors"]
    assert error["code"] == number
    assert words in error["message"]


OPENAI: dict[str, tuple[str, Any, int, str]] = {
    "unknown model": (CHAT, {"model": "@cf/none/no"}, 400, "model_not_found"),
    "unserved model": (CHAT, {"model": UNSERVED}, 400, "model_not_found"),
    "empty messages": (CHAT, {"messages": []}, 400, "invalid_input"),
    "messages of another type": (CHAT, {"messages": "hello"}, 400, "invalid_input"),
    "temperature of another type": (CHAT, {"temperature": "hot"}, 400, "invalid_input"),
    "too many choices": (CHAT, {"n": 129}, 400, "invalid_input"),
    "negative max_tokens": (CHAT, {"max_tokens": -5}, 400, "invalid_input"),
    "huge max_tokens": (CHAT, {"max_tokens": 500}, 400, "context_length_exceeded"),
    "over-long": (
        CHAT, {"messages": [{"role": "user", "content": "x" * CONTEXT}]}, 400,
        "context_length_exceeded",
    ),
    "NaN": (CHAT, b'{"model":"m","temperature":NaN}', 400, "invalid_json"),
    "invalid JSON": (CHAT, b"{", 400, "invalid_json"),
    "invalid UTF-8": (CHAT, b'{"model":"\xff"}', 400, "invalid_json"),
    "completion without prompt": (COMPLETE, {"prompt": None}, 400, "invalid_input"),
    "one over-long prompt of two": (
        COMPLETE, {"prompt": ["x", "x" * CONTEXT]}, 400, "context_length_exceeded",
    ),
    "foreign token ids": (COMPLETE, {"prompt": [1, 1 << 20]}, 400, "invalid_input"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", OPENAI)
def test_openai(whole: Platform, mistake: str) -> None:
    path, body, status, code = OPENAI[mistake]
    if isinstance(body, dict):
        plain = {"messages": HI} if path == CHAT else {"prompt": "x"}
        body = {"model": MODEL, **plain, **body}
    reply = whole.send(path, body)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error["code"] == code
    assert error["message"]


@pytest.mark.parametrize(
    ("path", "method", "headers", "status", "number"),
    [
        (f"{BASE}/run/@cf/none/no", "POST", {}, 400, 5007),
        (f"{BASE}/run/{UNSERVED}", "POST", {}, 400, 5007),
        (RUN, "GET", {}, 405, 7001),
        (RUN, "PUT", {}, 405, 7001),
        (RUN, "DELETE", {}, 405, 7001),
        (RUN, "POST", {"authorization": "Bearer wrong"}, 401, 10000),
        (RUN, "POST", {"authorization": ""}, 401, 10000),
        (f"{BASE}/nothing", "POST", {}, 404, 7003),
    ],
)
def test_wrong_door(
    whole: Platform, path: str, method: str, headers: dict[str, str], status: int, number: int
) -> None:
    reply = whole.send(path, {"prompt": "x"}, method, headers=headers)
    assert reply.status_code == status, reply.text
    error = reply.json()["errors"][0]
    assert error["code"] == number
    assert error["message"]


ASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": (RUN, {"prompt": "x" * 150, "max_tokens": 300, "seed": 7}),
    "chat": (CHAT, {"model": MODEL, "messages": HI, "max_tokens": 300, "seed": 7}),
    "chat, three choices": (
        CHAT,
        {"model": MODEL, "messages": HI, "max_tokens": 300, "seed": 7, "n": 3},
    ),
    "completion": (COMPLETE, {"model": MODEL, "prompt": "x" * 150, "max_tokens": 300, "seed": 7}),
}


@pytest.mark.parametrize("ask", ASKS)
def test_a_client_that_leaves_in_mid_stream(whole: Platform, ask: str) -> None:
    path, body = ASKS[ask]
    whole.gate.close_after(4)
    before = whole.engine.statistics().output_tokens
    with whole.client.stream("POST", path, json={**body, "stream": True}) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()  # held: httpx leaves when it is collected
        while not next(lines).startswith("data: "):
            pass
        eventually(lambda: whole.engine.statistics().blocks_used > 0)
    left(whole, before)


@pytest.mark.parametrize("ask", ASKS)
def test_a_client_that_leaves_before_its_answer(whole: Platform, ask: str) -> None:
    path, body = ASKS[ask]
    whole.gate.close_after(4)
    before = whole.engine.statistics().output_tokens
    with asking(whole.client, path, body):
        eventually(lambda: whole.engine.statistics().blocks_used > 0)
    left(whole, before)


def left(whole: Platform, before: int) -> None:
    """The edge noticed while the engine was held, so the engine stops at its next step."""
    eventually(lambda: whole.edge.metrics.running.value == 0)
    whole.gate.opened.set()
    whole.assert_whole()
    assert whole.engine.statistics().output_tokens - before < 20


def test_a_client_that_leaves_while_it_waits(whole: Platform) -> None:
    """Its prompt has not begun: others have the engine."""
    whole.gate.close_after(0)
    first = threading.Thread(target=whole.send, args=(RUN, {"prompt": "first", "max_tokens": 5}))
    first.start()
    eventually(lambda: whole.engine.statistics().running == 1)
    with asking(whole.client, RUN, {"prompt": "second", "max_tokens": 5}):
        eventually(lambda: whole.edge.metrics.running.value == 2)
    eventually(lambda: whole.edge.metrics.running.value == 1)
    whole.gate.opened.set()
    first.join()


def test_good_input_meanwhile(whole: Platform) -> None:
    """Mistakes of one caller cost the others nothing."""
    answers: list[str] = []

    def good() -> None:
        body = {"prompt": "hello", "max_tokens": 200, "seed": 7, "stream": True}
        reply = whole.send(RUN, body)
        answers.append("".join(event["response"] for event in events(reply.text)[:-1]))

    def bad() -> None:
        for body, *_ in NATIVE.values():
            whole.send(RUN, body)

    good()
    threads = [threading.Thread(target=each) for each in (good, bad, good, bad, good)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert len(set(answers)) == 1
