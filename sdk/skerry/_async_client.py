"""`AsyncAI`: calls by an asyncio HTTP client."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

import anyio
import httpx

from skerry._batch import AsyncBatch, submit
from skerry._calls import DEFAULT_TIMEOUT, LIMITS, CallOptions, Client, FreeInputs, Inputs, Reply
from skerry._exchange import Read, Send, Sleep, Step, Streamed
from skerry._results import Result
from skerry._stream import AsyncStream, BoundedBody
from skerry.tasks import (
    ClassificationInputs,
    ContextInputs,
    DocumentInputs,
    EmbeddingInputs,
    Embeddings,
    KnownInputs,
    Label,
    Model,
    ModelSchema,
    QueryInputs,
    Ranking,
    RankingInputs,
    StreamedInputs,
    TextGeneration,
    TextGenerationInputs,
)


class AsyncAI(Client):
    """`AI` for asyncio and trio: `await ai.run(…)`, `async for` over a stream, `async with`.

    A cancelled call or stream closes its connection, and the platform stops generating.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        account_id: str | None = None,
        api_token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_retries: int = 2,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        """`http_client` replaces the one that would be made, and is then the caller's to close."""
        super().__init__(base_url, account_id, api_token, timeout, max_retries)
        self._owns_http = http_client is None
        self._http = http_client or httpx.AsyncClient(limits=LIMITS)

    @overload
    async def run(
        self,
        model: str,
        inputs: TextGenerationInputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> TextGeneration: ...

    @overload
    async def run(
        self,
        model: str,
        inputs: StreamedInputs,
        *,
        stream: bool = ...,
        **options: Unpack[CallOptions],
    ) -> AsyncStream: ...

    @overload
    async def run(
        self,
        model: str,
        inputs: RankingInputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> Ranking: ...

    @overload
    async def run(  # type: ignore[overload-overlap]  # a bare {"text": "…"} is taken for this one
        self,
        model: str,
        inputs: EmbeddingInputs | QueryInputs | DocumentInputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> Embeddings: ...

    @overload
    async def run(
        self,
        model: str,
        inputs: ClassificationInputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> list[Label]: ...

    @overload
    async def run(
        self,
        model: str,
        inputs: ContextInputs | FreeInputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> Reply: ...

    @overload
    async def run(
        self,
        model: str,
        inputs: KnownInputs | FreeInputs,
        *,
        stream: Literal[True],
        **options: Unpack[CallOptions],
    ) -> AsyncStream: ...

    @overload
    async def run(
        self,
        model: str,
        inputs: KnownInputs | FreeInputs,
        *,
        stream: bool,
        **options: Unpack[CallOptions],
    ) -> AsyncStream | Reply: ...

    async def run(
        self,
        model: str,
        inputs: KnownInputs | Inputs,
        *,
        stream: bool = False,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Run a model as `AI.run` does, with an `AsyncStream` in place of a `Stream`."""
        outcome = await self._drive(self._run(model, inputs, stream, options))
        return AsyncStream(outcome.response) if isinstance(outcome, Streamed) else outcome

    async def batch(
        self, model: str, requests: Iterable[Mapping[str, Any]], **options: Unpack[CallOptions]
    ) -> AsyncBatch:
        """See `AI.batch`."""
        queue = self._queue(model, options)
        return AsyncBatch(model, await self._drive(submit(queue, requests)), queue, self._drive)

    def find_batch(self, model: str, id: str, **options: Unpack[CallOptions]) -> AsyncBatch:
        """See `AI.find_batch`."""
        return AsyncBatch(model, id, self._queue(model, options), self._drive)

    async def models(
        self,
        *,
        search: str | None = None,
        task: str | None = None,
        author: str | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Model]:
        """See `AI.models`."""
        filters = {"search": search, "task": task, "author": author}
        models: list[Model] = await self._drive(self._models(filters, options))
        return models

    async def schema(self, model: str, **options: Unpack[CallOptions]) -> ModelSchema:
        """See `AI.schema`."""
        schema: ModelSchema = await self._drive(self._schema(model, options))
        return schema

    async def usage(
        self, *, by: str = "model", since: str = "30d", **options: Unpack[CallOptions]
    ) -> list[Result]:
        """See `AI.usage`."""
        found: list[Result] = await self._drive(self._usage(by, since, options))
        return found

    async def close(self) -> None:
        """Close idle connections. Streams that are still open end with an error."""
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _drive(self, steps: Generator[Step, Any, Any]) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    outcome = await self._perform(step)
                except httpx.RequestError as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            return end.value

    async def _perform(self, step: Step) -> Any:
        match step:
            case Send(request):
                return await self._http.send(request, stream=True)
            case Read(response, max_bytes):
                body = BoundedBody(max_bytes)
                try:
                    async for data in response.aiter_bytes():
                        body.add(data)
                finally:
                    await response.aclose()
                return body.take()
            case Sleep(seconds):
                await anyio.sleep(seconds)
