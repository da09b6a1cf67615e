"""`env.AI`: code as it stands in a Python Worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.sdk.platform import ACCOUNT, TOKEN, Platform
from tests.sdk.recorded_shapes import LABELS, MODELS, NATIVE, NATIVE_EVENTS, REQUEST_ID

from skerry.workers import Ai, Env, JsDict, JsException, ReadableStream

MODEL = "@test/vendor/native"
pytestmark = pytest.mark.anyio


@pytest.fixture
async def ai(platform: Platform) -> AsyncIterator[Ai]:
    ai = Ai(base_url=platform.url, account_id=ACCOUNT, api_token=TOKEN)
    yield ai
    await ai.close()


async def test_a_result_is_a_dict_with_attributes(ai: Ai) -> None:
    out = await ai.run(MODEL, {"messages": [{"role": "user", "content": "hi"}]})
    assert isinstance(out, JsDict)
    assert out["response"] == out.response == "the sea"
    assert out.usage.to_py()["total_tokens"] == 14
    plain = out.to_py()
    assert plain == NATIVE
    assert type(plain) is dict
    assert type(plain["usage"]) is dict
    assert ai.lastRequestId == REQUEST_ID
    assert ai.lastRequestHttpStatusCode == 200


async def test_lists_are_lists(ai: Ai) -> None:
    labels = await ai.run("@test/labels", {"text": "x"})
    assert labels == LABELS
    assert labels[1].label == "POSITIVE"


@pytest.mark.parametrize("trailing", [{}, {"prompt": "x"}])
async def test_keywords_are_the_last_object(
    ai: Ai, platform: Platform, trailing: dict[str, Any]
) -> None:
    await ai.run(MODEL, **(trailing or {"prompt": "y"}))
    assert platform.seen[0].json == (trailing or {"prompt": "y"})
    await ai.run(MODEL, {"prompt": "x"}, extraHeaders={"x-session-affinity": "s"})
    assert platform.seen[1].headers["x-session-affinity"] == "s"


async def test_options_go_where_the_platform_looks_for_them(ai: Ai, platform: Platform) -> None:
    options = {
        "gateway": {
            "id": "mine",
            "skipCache": True,
            "cacheTtl": 60,
            "metadata": {"a": 1},
            "requestTimeoutMs": 2500,
        },
        "extraHeaders": {"x-session-affinity": "s"},
        "rejectIfBusy": True,
        "queueRequest": True,
        "tags": ["t"],
    }
    await ai.run(MODEL, {"prompt": "x"}, options)
    [seen] = platform.seen
    assert seen.json == {"prompt": "x", "options": {"rejectIfBusy": True, "tags": ["t"]}}
    assert seen.query == {"queueRequest": "true"}
    assert seen.headers["cf-aig-gateway-id"] == "mine"
    assert seen.headers["cf-aig-skip-cache"] == "true"
    assert seen.headers["cf-aig-metadata"] == '{"a":1}'
    assert seen.headers["cf-aig-request-timeout"] == "2500"
    assert seen.headers["x-session-affinity"] == "s"


@pytest.mark.parametrize(
    ("arguments", "keywords", "reason"),
    [
        (({}, {}), {"a": 1}, "as a dict or as keywords"),
        (({}, {"websocket": True}), {}, "does not take websocket"),
        (({}, {"gateway": {"cash": 1}}), {}, "gateway does not take cash"),
    ],
)
async def test_what_the_binding_does_not_take(
    ai: Ai, arguments: tuple[Any, ...], keywords: dict[str, Any], reason: str
) -> None:
    with pytest.raises(TypeError, match=reason):
        await ai.run(MODEL, *arguments, **keywords)


async def test_attempts_are_counted(ai: Ai, platform: Platform) -> None:
    with pytest.raises(JsException, match="3040"):
        await ai.run("@test/flaky", {"prompt": "x"}, {"gateway": {"retries": {"maxAttempts": 2}}})
    assert len(platform.seen) == 2


async def test_a_stream_is_bytes_of_events(ai: Ai) -> None:
    stream = await ai.run(MODEL, {"prompt": "x", "stream": True})
    assert isinstance(stream, ReadableStream)
    body = b"".join([piece async for piece in stream])
    first = body.split(b"\n\n")[0].removeprefix(b"data: ")
    assert json.loads(first) == NATIVE_EVENTS[0]
    assert body.endswith(b"data: [DONE]\n\n")


async def test_a_reader(ai: Ai) -> None:
    reader = (await ai.run(MODEL, {"prompt": "x", "stream": True})).getReader()
    body = b""
    while not (step := await reader.read()).done:
        body += step.value
    assert body.endswith(b"[DONE]\n\n")
    assert (await reader.read()).to_py() == {"done": True, "value": None}
    reader.releaseLock()


async def test_a_cancelled_stream_stops_the_platform(ai: Ai, platform: Platform) -> None:
    stream = await ai.run("@test/endless", {"prompt": "x", "stream": True})
    await stream.getReader().read()
    await stream.cancel()
    assert await asyncio.to_thread(platform.gone.wait, 10)


async def test_an_error_starts_with_its_number(ai: Ai) -> None:
    with pytest.raises(JsException) as caught:
        await ai.run("@test/unknown", {"prompt": "x"})
    assert caught.value.name == "InferenceUpstreamError"
    assert caught.value.message.startswith("5007: No such model @test/unknown")
    assert ai.lastRequestHttpStatusCode == 400
    assert ai.lastRequestInternalStatusCode == 5007


async def test_nobody_there() -> None:
    ai = Ai(base_url="http://127.0.0.1:9", account_id=ACCOUNT, api_token=TOKEN)
    with pytest.raises(JsException, match="AiInternalError: Cannot reach"):
        await ai.models()
    await ai.close()


async def test_a_broken_stream(ai: Ai) -> None:
    stream = await ai.run("@test/broken", {"prompt": "x", "stream": True})
    with pytest.raises(JsException, match="AiInternalError: Lost"):
        _ = [piece async for piece in stream]


async def test_models(ai: Ai, platform: Platform) -> None:
    models = await ai.models({"search": "a"})
    assert models == MODELS
    assert models[0].name == MODELS[0]["name"]
    assert platform.seen[0].query["search"] == "a"


def test_one_binding_works_on_several_loops(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKERRY_BASE_URL", platform.url)
    monkeypatch.setenv("SKERRY_ACCOUNT_ID", ACCOUNT)
    monkeypatch.setenv("SKERRY_API_TOKEN", TOKEN)
    env = Env()
    assert env.AI is env.AI

    async def handler() -> Any:
        out = await env.AI.run(MODEL, {"prompt": "x"})
        await env.AI.close()
        return out.response

    assert [asyncio.run(handler()) for _ in range(2)] == ["the sea", "the sea"]
