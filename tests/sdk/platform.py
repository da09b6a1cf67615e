"""A platform that answers each model id with one recorded shape, served by uvicorn on port 0.

`@test/…` ids name the scenario. `seen` holds the requests that arrived, `arrived` is set by the
first of them, and `gone` when a client leaves a stream that would go on for ever.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.sdk.recorded_shapes import (
    CHAT_EVENTS,
    LABELS,
    MODELS,
    NATIVE,
    NATIVE_EVENTS,
    PNG,
    REQUEST_ID,
    envelope,
    failure,
    sse,
)

from skerry import AI, AsyncAI

ACCOUNT = "0123456789abcdef0123456789abcdef"
TOKEN = "test-token"


@dataclass
class Seen:
    """One request as it arrived."""

    raw_path: bytes
    headers: dict[str, str]
    body: bytes
    client_port: int
    query: dict[str, str]

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Platform:
    url: str = ""
    seen: list[Seen] = field(default_factory=list[Seen])
    arrived: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)

    def forget(self) -> None:
        self.seen.clear()
        self.arrived.clear()
        self.gone.clear()

    def ai(self, **options: Any) -> AI:
        return AI(base_url=self.url, account_id=ACCOUNT, api_token=TOKEN, **options)

    def async_ai(self, **options: Any) -> AsyncAI:
        return AsyncAI(base_url=self.url, account_id=ACCOUNT, api_token=TOKEN, **options)

    @classmethod
    @contextmanager
    def serve(cls) -> Generator[Platform]:
        platform = cls()
        config = uvicorn.Config(platform.app(), log_level="critical", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        listener = socket.create_server(("127.0.0.1", 0))
        platform.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield platform
        finally:
            server.should_exit = server.force_exit = True
            thread.join()
            listener.close()

    def app(self) -> Starlette:
        async def see(request: Request) -> None:
            client = request.client
            self.seen.append(
                Seen(
                    request.scope["raw_path"],
                    dict(request.headers),
                    await request.body(),
                    client.port if client else 0,
                    dict(request.query_params),
                )
            )
            self.arrived.set()

        async def search(request: Request) -> Response:
            """Two models on the first page, one on the second, none on the third."""
            await see(request)
            start = 2 * (int(request.query_params["page"]) - 1)
            return JSONResponse(envelope(MODELS[start : start + 2]))

        async def schema(request: Request) -> Response:
            await see(request)
            schema = {"title": request.query_params["model"]}
            return JSONResponse(envelope({"input": schema, "output": {"type": "object"}}))

        async def run(request: Request) -> Response:
            await see(request)
            if request.headers["authorization"] != f"Bearer {TOKEN}":
                return JSONResponse(failure(10000, "Authentication error"), 401)
            return await SCENARIOS[request.path_params["model"]](self, request)

        base = "/client/v4/accounts/{account}/ai"
        return Starlette(
            routes=[
                Route(f"{base}/run/{{model:path}}", run, methods=["POST"]),
                Route(f"{base}/models/search", search),
                Route(f"{base}/models/schema", schema),
            ]
        )


Scenario = Callable[[Platform, Request], Awaitable[Response]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(model: str) -> Callable[[Scenario], Scenario]:
    def register(answer: Scenario) -> Scenario:
        SCENARIOS[model] = answer
        return answer

    return register


def fixed(model: str, make: Callable[[], Response]) -> None:
    async def answer(platform: Platform, request: Request) -> Response:
        return make()

    SCENARIOS[model] = answer


def event_stream(text: str) -> Response:
    return Response(text, media_type="text/event-stream", headers={"cf-ai-req-id": REQUEST_ID})


@scenario("@test/vendor/native")
async def native(platform: Platform, request: Request) -> Response:
    if (await request.json()).get("stream"):
        return event_stream(sse(NATIVE_EVENTS))
    return JSONResponse(envelope(NATIVE), headers={"cf-ai-req-id": REQUEST_ID})


@scenario("@test/flaky")
async def flaky(platform: Platform, request: Request) -> Response:
    """Out of capacity twice, then well."""
    if len(platform.seen) < 3:
        headers = {"retry-after-ms": "1", "cf-ai-req-id": REQUEST_ID}
        return JSONResponse(failure(3040, "Capacity temporarily exceeded"), 429, headers)
    return JSONResponse(envelope(NATIVE))


@scenario("@test/endless")
async def endless(platform: Platform, request: Request) -> Response:
    """Chunks without end; `gone` is set when the client has left."""

    async def chunks() -> AsyncIterator[str]:
        try:
            while True:
                yield sse([{"response": "on "}], done=False)
                await asyncio.sleep(0.001)
        finally:
            platform.gone.set()

    return StreamingResponse(chunks(), media_type="text/event-stream")


@scenario("@test/silent")
async def silent(platform: Platform, request: Request) -> Response:
    """One chunk and then nothing, until the client has left."""

    async def chunks() -> AsyncIterator[str]:
        try:
            yield sse([{"response": "one"}], done=False)
            await asyncio.Event().wait()
        finally:
            platform.gone.set()

    return StreamingResponse(chunks(), media_type="text/event-stream")


@scenario("@test/mute")
async def mute(platform: Platform, request: Request) -> Response:
    """No answer at all, until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    platform.gone.set()
    return Response()


@scenario("@test/broken")
async def broken(platform: Platform, request: Request) -> Response:
    """The connection is dropped in the middle of a body of announced length."""
    headers = {"content-length": "1000000"}
    text = sse(NATIVE_EVENTS[:1], done=False)

    async def chunks() -> AsyncIterator[str]:
        yield text
        raise ConnectionResetError

    return StreamingResponse(chunks(), media_type="text/event-stream", headers=headers)


@scenario("@test/bytewise")
async def bytewise(platform: Platform, request: Request) -> Response:
    """A stream with CRLF, comments and a multi-byte character, one byte at a time."""
    text = ': ping\r\n\r\ndata: {"response": "Sk\u00e6rg\u00e5rd"}\r\n\r\ndata: [DONE]\r\n\r\n'

    async def pieces() -> AsyncIterator[bytes]:
        for byte in text.encode():
            yield bytes([byte])

    return StreamingResponse(pieces(), media_type="text/event-stream; charset=utf-8")


def native_error(model: str, status: int, code: int, message: str, **headers: str) -> None:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    fixed(model, lambda: JSONResponse(failure(code, message), status, names))


fixed("@test/chat", lambda: event_stream(sse(CHAT_EVENTS)))
fixed("@test/labels", lambda: JSONResponse(envelope(LABELS)))
fixed("@test/bare", lambda: JSONResponse({"object": "chat.completion", "error": None}))
fixed("@test/image", lambda: Response(PNG, media_type="image/png"))
fixed("@test/empty", lambda: Response(status_code=200, media_type="application/octet-stream"))
fixed("@test/cut", lambda: event_stream(sse(NATIVE_EVENTS[:3], done=False)))
fixed("@test/garbled", lambda: event_stream("data: {]\n\n"))
fixed("@test/scalar", lambda: event_stream("data: 7\n\n"))
fixed("@test/not-json", lambda: Response("<html>", media_type="application/json"))
fixed("@test/failed-200", lambda: JSONResponse(failure(5007, "No such model"), 200))
fixed(
    "@test/event-error",
    lambda: event_stream(
        sse(NATIVE_EVENTS[:1], done=False)
        + f"event: error\ndata: {json.dumps(failure(3040, 'AiError: AiError: Gone'))}\n\n"
    ),
)
fixed(
    "@test/openai-event-error",
    lambda: event_stream(
        sse([{"error": {"message": "Too slow", "code": "timeout", "type": "x"}}], done=False)
    ),
)
native_error("@test/unknown", 400, 5007, "AiError: No such model @test/unknown (uuid)")
native_error("@test/quota", 429, 3036, "You have used up your daily free allocation")
native_error("@test/stop", 503, 3010, "overloaded", x_should_retry="false", retry_after="7")
native_error("@test/patience", 429, 3040, "Come back tomorrow", retry_after="86400")
fixed(
    "@test/openai-error",
    lambda: JSONResponse(
        {
            "error": {
                "message": "Too long",
                "type": "invalid_request_error",
                "code": "context_length_exceeded",
                "param": "messages",
            },
            "errors": [{"code": 5021, "message": "AiError: Too long"}],
            "success": False,
        },
        413,
        {"x-request-id": REQUEST_ID},
    ),
)
fixed("@test/text-error", lambda: PlainTextResponse("upstream connect error", 502))
fixed("@test/bare-error", lambda: Response(status_code=418))
fixed("@test/redirect", lambda: Response(status_code=302, headers={"location": "/elsewhere"}))
