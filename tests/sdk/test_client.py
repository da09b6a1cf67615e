"""`AI` and `AsyncAI` against a real HTTP server: what is sent, what comes back, what is raised."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from tests.sdk.platform import ACCOUNT, TOKEN, Platform
from tests.sdk.recorded_shapes import LABELS, MODEL, NATIVE, PNG, REQUEST_ID

import skerry
from skerry import AI, Chunk, Result, Stream
from skerry._stream import AsyncStream


async def run_async(platform: Platform, model: str, inputs: Any = None, **options: Any) -> Any:
    async with platform.async_ai() as ai:
        outcome: Any = await ai.run(model, inputs or {"prompt": "x"}, **options)
        if isinstance(outcome, AsyncStream):
            return [chunk async for chunk in outcome]
        return outcome


def run_sync(platform: Platform, model: str, inputs: Any = None, **options: Any) -> Any:
    with platform.ai() as ai:
        outcome: Any = ai.run(model, inputs or {"prompt": "x"}, **options)
        return list(outcome) if isinstance(outcome, Stream) else outcome


@pytest.fixture(params=["blocking", "async"])
def run(request: pytest.FixtureRequest, platform: Platform) -> Any:
    """Both clients behind one function; a stream comes back as the list of its chunks."""
    if request.param == "blocking":
        return lambda *args, **options: run_sync(platform, *args, **options)
    return lambda *args, **options: asyncio.run(run_async(platform, *args, **options))


def test_a_plain_result_is_a_dict_with_attributes(run: Any) -> None:
    result = run(MODEL)
    assert result == NATIVE
    assert isinstance(result, Result)
    assert result.response == result["response"] == "the sea"
    assert result.usage.prompt_tokens_details.cached_tokens == 0


def test_the_platform_is_told_how_long_an_answer_is_waited_for(
    run: Any, platform: Platform
) -> None:
    run(MODEL, timeout=2.5)
    run(MODEL, stream=True, timeout=2.5)
    run(MODEL, timeout=2.5, extra_headers={"cf-aig-request-timeout": "7"})
    told = [seen.headers.get("cf-aig-request-timeout") for seen in platform.seen]
    assert told == ["2500", None, "7"]


def test_what_is_sent(run: Any, platform: Platform) -> None:
    run(
        MODEL,
        {"prompt": "Sk\u00e6r", "max_tokens": 3},
        session_affinity="chat-1",
        idempotency_key="order-1",
        extra_headers={"X-Trace": "t"},
    )
    [seen] = platform.seen
    assert seen.raw_path == f"/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}".encode()
    assert seen.json == {"prompt": "Sk\u00e6r", "max_tokens": 3}
    assert seen.headers["authorization"] == f"Bearer {TOKEN}"
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["x-session-affinity"] == "chat-1"
    assert seen.headers["idempotency-key"] == "order-1"
    assert seen.headers["x-trace"] == "t"
    assert seen.headers["user-agent"] == f"skerry-python/{skerry.__version__}"


def test_bytes_are_sent_as_they_are(run: Any, platform: Platform) -> None:
    run("@test/labels", PNG)
    assert platform.seen[0].body == PNG
    assert platform.seen[0].headers["content-type"] == "application/octet-stream"


def test_a_native_stream(run: Any, platform: Platform) -> None:
    chunks = run(MODEL, {"prompt": "x"}, stream=True)
    assert platform.seen[0].json == {"prompt": "x", "stream": True}
    assert platform.seen[0].headers["accept-encoding"] == "identity"
    assert [chunk.response for chunk in chunks] == ["the", "", " sea", "7", ""]
    assert chunks[-1].usage.total_tokens == 14
    assert all(isinstance(chunk, Chunk) for chunk in chunks)


def test_stream_among_the_inputs_is_a_stream_too(run: Any) -> None:
    assert run(MODEL, {"prompt": "x", "stream": True}) == run(MODEL, stream=True)


def test_a_chat_models_stream_has_the_same_response(run: Any) -> None:
    chunks = run("@test/chat", stream=True)
    assert [chunk.response for chunk in chunks] == ["", "Hi", "", "", ""]
    assert chunks[2].choices[0].finish_reason == "stop"


def test_a_stream_in_single_bytes(run: Any) -> None:
    assert [chunk.response for chunk in run("@test/bytewise", stream=True)] == [
        "Sk\u00e6rg\u00e5rd"
    ]


def test_a_plain_reply_to_a_streaming_call_is_one_chunk(run: Any) -> None:
    assert run("@test/labels", stream=True) == [{"result": LABELS}]
    [chunk] = run("@test/flaky", stream=True)
    assert chunk.response == "the sea"


@pytest.mark.parametrize("stream", [False, True])
def test_a_binary_reply_is_bytes(run: Any, stream: bool) -> None:
    assert run("@test/image", stream=stream) == PNG


def test_replies_of_other_shapes(run: Any) -> None:
    assert run("@test/labels") == LABELS
    assert run("@test/labels")[1].label == "POSITIVE"
    assert run("@test/bare") == {"object": "chat.completion", "error": None}
    assert run("@test/empty") == b""


def test_retries_until_it_is_well(run: Any, platform: Platform) -> None:
    assert run("@test/flaky") == NATIVE
    assert len(platform.seen) == 3


def test_retries_run_out(run: Any, platform: Platform) -> None:
    with pytest.raises(skerry.Overloaded) as caught:
        run("@test/flaky", max_retries=1)
    assert len(platform.seen) == 2
    error = caught.value
    assert (error.code, error.number, error.http_status) == ("overloaded", 3040, 429)
    assert (error.retryable, error.retry_after, error.request_id) == (True, 0.001, REQUEST_ID)


@pytest.mark.parametrize(
    ("model", "kind", "number", "status", "message"),
    [
        ("@test/unknown", skerry.ModelNotFound, 5007, 400, "No such model @test/unknown (uuid)"),
        ("@test/quota", skerry.QuotaExceeded, 3036, 429, "You have used up your daily free"),
        ("@test/openai-error", skerry.PromptTooLong, 5021, 413, "Too long"),
        ("@test/failed-200", skerry.ModelNotFound, 5007, 400, "No such model"),
        ("@test/bare-error", skerry.RequestError, 5004, 418, "HTTP 418"),
        ("@test/redirect", skerry.RequestError, 5004, 302, "HTTP 302"),
        ("@test/stop", skerry.CapacityError, 3010, 503, "overloaded"),
        ("@test/patience", skerry.Overloaded, 3040, 429, "Come back tomorrow"),
    ],
)
def test_errors_that_are_not_tried_again(
    run: Any,
    platform: Platform,
    model: str,
    kind: type[skerry.SkerryError],
    number: int,
    status: int,
    message: str,
) -> None:
    with pytest.raises(kind, match=message.replace("(", r"\(").replace(")", r"\)")) as caught:
        run(model)
    assert type(caught.value) is kind
    assert (caught.value.number, caught.value.http_status) == (number, status)
    assert len(platform.seen) == 1


def test_the_errors_fields(run: Any) -> None:
    with pytest.raises(skerry.PromptTooLong) as caught:
        run("@test/openai-error")
    assert (caught.value.param, caught.value.request_id) == ("messages", REQUEST_ID)
    with pytest.raises(skerry.CapacityError) as stopped:
        run("@test/stop")
    assert (stopped.value.retryable, stopped.value.retry_after) == (False, 7.0)


def test_a_raw_text_error(run: Any, platform: Platform) -> None:
    with pytest.raises(skerry.Unavailable, match="upstream connect error"):
        run("@test/text-error", max_retries=0)
    with pytest.raises(skerry.InternalError, match="not JSON"):
        run("@test/not-json", max_retries=0)


def test_a_wrong_token(platform: Platform) -> None:
    with (
        AI(base_url=platform.url, account_id=ACCOUNT, api_token="wrong") as ai,
        pytest.raises(skerry.AuthenticationError) as caught,
    ):
        ai.run(MODEL, {"prompt": "x"})
    assert caught.value.number == 10000
    assert "wrong" not in repr(ai)


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        ("@test/event-error", skerry.Overloaded, "Gone"),
        ("@test/openai-event-error", skerry.RequestTimeout, "Too slow"),
        ("@test/cut", skerry.ConnectionFailed, "before it was complete"),
        ("@test/broken", skerry.ConnectionFailed, "Lost"),
        ("@test/garbled", skerry.InternalError, "not JSON"),
        ("@test/scalar", skerry.InternalError, "not a JSON object"),
    ],
)
def test_a_stream_that_fails_raises(
    run: Any, platform: Platform, model: str, kind: type[skerry.SkerryError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        run(model, stream=True)
    assert len(platform.seen) == 1  # tokens were delivered: trying again is the caller's to decide


def test_chunks_before_the_failure_are_delivered(platform: Platform) -> None:
    got: list[str] = []
    with platform.ai() as ai, pytest.raises(skerry.Overloaded) as caught:
        got.extend(chunk.response for chunk in ai.run("@test/event-error", {}, stream=True))
    assert caught.value.request_id == REQUEST_ID
    assert got == ["the"]


@pytest.mark.parametrize(
    "inputs",
    [{"temperature": float("nan")}, {"image": b"raw"}, {"prompt": "\ud800"}],
)
def test_inputs_that_json_cannot_carry(run: Any, platform: Platform, inputs: Any) -> None:
    with pytest.raises(skerry.InvalidInput, match="JSON"):
        run(MODEL, inputs)
    assert platform.seen == []


@pytest.mark.parametrize("model", ["", "/x", "@cf//x", "@cf/../x", "x/", "a" * 600])
def test_what_is_no_model_id(run: Any, platform: Platform, model: str) -> None:
    with pytest.raises(skerry.InvalidInput) as caught:
        run(model)
    assert caught.value.param == "model"
    assert platform.seen == []


@pytest.mark.parametrize("value", ["two\nlines", "sn\u00f6"])
def test_a_header_that_http_cannot_carry(run: Any, platform: Platform, value: str) -> None:
    with pytest.raises(skerry.InvalidInput, match="header") as caught:
        run(MODEL, session_affinity=value)
    assert "lines" not in str(caught.value) + repr(caught.value.__cause__)
    assert platform.seen == []


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    ai = AI(base_url=f"http://127.0.0.1:{port}", account_id="a", api_token="t", max_retries=0)
    with ai, pytest.raises(skerry.ConnectionFailed, match=f"Cannot reach http://127.0.0.1:{port}"):
        ai.run(MODEL, {"prompt": "x"})


def test_the_callers_patience(run: Any, platform: Platform) -> None:
    with pytest.raises(skerry.RequestTimeout, match="in time"):
        run("@test/mute", timeout=0.5)  # in which a busy machine sends it, too
    assert len(platform.seen) == 1
    with pytest.raises(skerry.RequestTimeout, match="in time"):
        run("@test/silent", stream=True, timeout=0.05)


def test_arguments_out_of_range(platform: Platform) -> None:
    with pytest.raises(ValueError, match="max_retries"):
        platform.ai(max_retries=-1)
    for timeout in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            platform.ai(timeout=timeout)
