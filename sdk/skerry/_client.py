"""`AI`: calls by a blocking HTTP client."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

import httpx

from skerry._batch import Batch, submit
from skerry._calls import DEFAULT_TIMEOUT, LIMITS, CallOptions, Client, FreeInputs, Inputs, Reply
from skerry._exchange import Read, Send, Sleep, Step, Streamed
from skerry._results import Result
from skerry._stream import BoundedBody, Stream
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


class AI(Client):
    """A platform that runs models, called like Workers AI.

        ai = AI()
        ai.run("@cf/huggingfacetb/smollm2-135m-instruct", {"prompt": "The sea is"})["response"]

    Where it is and who calls come from the arguments, else from SKERRY_BASE_URL, SKERRY_ACCOUNT_ID
    and SKERRY_API_TOKEN, else from what `skerry up` wrote; `NotConfigured` says what is missing.
    Keeps connections open between calls; safe to share between threads; closed by `close()` or a
    `with` block.
    """

    def __init__(
        self,
        *,
        base_url: str | None = None,
        account_id: str | None = None,
        api_token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_retries: int = 2,
        http_client: httpx.Client | None = None,
    ) -> None:
        """`http_client` replaces the one that would be made, and is then the caller's to close."""
        super().__init__(base_url, account_id, api_token, timeout, max_retries)
        self._owns_http = http_client is None
        self._http = http_client or httpx.Client(limits=LIMITS)

    @overload
    def run(
        self,
        model: str,
        inputs: TextGenerationInputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> TextGeneration: ...

    @overload
    def run(
        self,
        model: str,
        inputs: StreamedInputs,
        *,
        stream: bool = ...,
        **options: Unpack[CallOptions],
    ) -> Stream: ...

    @overload
    def run(
        self,
        model: str,
        inputs: RankingInputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> Ranking: ...

    @overload
    def run(  # type: ignore[overload-overlap]  # a bare {"text": "…"} is taken for this one
        self,
        model: str,
        inputs: EmbeddingInputs | QueryInputs | DocumentInputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> Embeddings: ...

    @overload
    def run(
        self,
        model: str,
        inputs: ClassificationInputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> list[Label]: ...

    @overload
    def run(
        self,
        model: str,
        inputs: ContextInputs | FreeInputs,
        *,
        stream: Literal[False] = False,
        **options: Unpack[CallOptions],
    ) -> Reply: ...

    @overload
    def run(
        self,
        model: str,
        inputs: KnownInputs | FreeInputs,
        *,
        stream: Literal[True],
        **options: Unpack[CallOptions],
    ) -> Stream: ...

    @overload
    def run(
        self,
        model: str,
        inputs: KnownInputs | FreeInputs,
        *,
        stream: bool,
        **options: Unpack[CallOptions],
    ) -> Stream | Reply: ...

    def run(
        self,
        model: str,
        inputs: KnownInputs | Inputs,
        *,
        stream: bool = False,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Run a model: its result, or with `stream=True` a `Stream` of chunks.

        A binary reply is bytes whatever `stream` says; `{"stream": True}` among the inputs gives a
        `Stream` too. Options are `session_affinity`, `idempotency_key`, `timeout`, `max_retries`
        and `extra_headers`, see `CallOptions`. Raises a `SkerryError`; one whose `retryable` is
        true was given `max_retries` more tries before.
        """
        outcome = self._drive(self._run(model, inputs, stream, options))
        return Stream(outcome.response) if isinstance(outcome, Streamed) else outcome

    def batch(
        self, model: str, requests: Iterable[Mapping[str, Any]], **options: Unpack[CallOptions]
    ) -> Batch:
        """Queue requests that may wait; they run on idle capacity.

        Each is what `run` takes, and may have an `external_reference`. Sent again after a failure,
        they are still queued once.
        """
        queue = self._queue(model, options)
        return Batch(model, self._drive(submit(queue, requests)), queue, self._drive)

    def find_batch(self, model: str, id: str, **options: Unpack[CallOptions]) -> Batch:
        """Return a batch that was queued before, here or elsewhere, with this account's tokens."""
        return Batch(model, id, self._queue(model, options), self._drive)

    def models(
        self,
        *,
        search: str | None = None,
        task: str | None = None,
        author: str | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Model]:
        """Return the models that are served, under every name: all, or those that the filters
        leave.

        `search` is a part of a name, `task` such as "text-generation", `author` such as "meta".
        """
        filters = {"search": search, "task": task, "author": author}
        models: list[Model] = self._drive(self._models(filters, options))
        return models

    def schema(self, model: str, **options: Unpack[CallOptions]) -> ModelSchema:
        """Return what a model takes and gives, in JSON Schema."""
        schema: ModelSchema = self._drive(self._schema(model, options))
        return schema

    def usage(
        self, *, by: str = "model", since: str = "30d", **options: Unpack[CallOptions]
    ) -> list[Result]:
        """Return what the account used, summed by `token`, `model`, `day` or `edge`, or several of
        them with commas.

        `since` is 90m, 24h or 7d ago, or a UTC day.
        """
        found: list[Result] = self._drive(self._usage(by, since, options))
        return found

    def close(self) -> None:
        """Close idle connections. Streams that are still open end with an error."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _drive(self, steps: Generator[Step, Any, Any]) -> Any:
        try:
            step = next(steps)
            while True:
                try:
                    outcome = self._perform(step)
                except httpx.RequestError as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            return end.value

    def _perform(self, step: Step) -> Any:
        match step:
            case Send(request):
                return self._http.send(request, stream=True)
            case Read(response, max_bytes):
                body = BoundedBody(max_bytes)
                try:
                    for data in response.iter_bytes():
                        body.add(data)
                finally:
                    response.close()
                return body.take()
            case Sleep(seconds):
                time.sleep(seconds)
