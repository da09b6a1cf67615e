"""Encoders of a node: texts to vectors or scores, beside the engines that make tokens."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from skerry.errors import InvalidInput, SkerryError, Unavailable
from skerry_core.encoder.worker import EncodeRequest, EncoderWorker
from skerry_core.request import PRIORITIES
from skerry_core.weights.tensors import Float32
from skerry_regions.node.rejections import REFUSED, State, rejection, unavailable
from skerry_regions.wire.client import failed_event
from skerry_regions.wire.protocol import (
    MAX_VECTOR_BYTES,
    Embed,
    Embedded,
    EngineBeat,
    Failed,
    VectorKind,
)

if TYPE_CHECKING:
    from skerry_core.encoder.encoder import Encoder

logger = logging.getLogger(__name__)

Sink = Callable[[Embedded | Failed], None]
"""Takes the one event of a stream, on the event loop. It must not block and not raise."""


class Encoding:
    """One request in progress. Ends with one `Embedded` or `Failed`, unless it is aborted."""

    __slots__ = ("_encoder", "id", "sink", "stream")

    def __init__(self, encoder: ServedEncoder, id_: str, stream: int, sink: Sink) -> None:
        self._encoder = encoder
        self.id = id_
        self.stream = stream
        self.sink = sink

    def abort(self) -> None:
        """Stop it, if its turn has not come; a `Failed` says so. Idempotent, never fails."""
        self._encoder.abort(self)


class ServedEncoder:
    """An encoder on its worker, and the requests in progress. Belongs to one event loop."""

    def __init__(self, model: str, encoder: Encoder, loop: asyncio.AbstractEventLoop) -> None:
        self.model = model
        self.state: State = "ready"
        self._encoder = encoder
        self._loop = loop
        self._running: dict[str, Encoding] = {}
        self._numbers = itertools.count()
        self._worker = EncoderWorker(encoder, deliver=self._deliver, failed=self._failed)
        self._worker.start()

    @property
    def num_streams(self) -> int:
        return len(self._running)

    def submit(self, embed: Embed, sink: Sink) -> Encoding:
        """Start a request; its event goes to `sink`, never before this returns.

        Raises InvalidInput, Overloaded (with `retry_after`) or Unavailable.
        """
        if self.state != "ready":
            raise self._gone()
        width = self._width(embed.pooling)
        if 4 * width * len(embed.texts) > MAX_VECTOR_BYTES:
            raise InvalidInput(
                f"{len(embed.texts)} vectors of {width} numbers exceed {MAX_VECTOR_BYTES} bytes; "
                "send fewer texts at once"
            )
        encoding = Encoding(self, f"{embed.request_id}#{next(self._numbers)}", embed.stream, sink)
        request = EncodeRequest(
            id=encoding.id,
            texts=tuple(map(tuple, embed.texts)),
            kind=embed.pooling,
            normalize=embed.normalize,
            second_starts=tuple(embed.second_starts),
            priority=PRIORITIES[embed.priority],
        )
        try:
            self._worker.submit(request)
        except REFUSED as error:
            raise rejection(error, self._gone) from None
        self._running[encoding.id] = encoding
        return encoding

    def abort(self, encoding: Encoding) -> None:
        if encoding.id in self._running:
            self._worker.abort(encoding.id)
            self._fail(encoding, Unavailable("the request was given up"))

    def _width(self, kind: VectorKind) -> int:
        encoder = self._encoder
        return encoder.num_classes if kind == "classes" else encoder.width

    def beat(self) -> EngineBeat:
        statistics = self._worker.statistics()
        return EngineBeat(
            model=self.model,
            steps=statistics.turns,
            running=statistics.running,
            waiting=statistics.waiting,
        )

    async def close(self) -> None:
        """Fail what runs with `Unavailable`, stop the thread and free the memory."""
        if self.state == "ready":
            self.state = "closed"
        self._fail_all()
        await asyncio.to_thread(self._worker.close)

    # --- on the worker's thread ------------------------------------------------------------------

    def _deliver(self, id_: str, vectors: Float32) -> None:
        data = np.ascontiguousarray(vectors, "<f4").tobytes()
        self._loop.call_soon_threadsafe(self._on_vectors, id_, data)

    def _failed(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._on_failure, error)

    # --- back on the loop ------------------------------------------------------------------------

    def _on_vectors(self, id_: str, data: bytes) -> None:
        encoding = self._running.pop(id_, None)
        if encoding is not None:
            encoding.sink(Embedded(stream=encoding.stream, vectors=data))

    def _on_failure(self, error: BaseException) -> None:
        logger.error("the encoder of %s stopped", self.model, exc_info=error)
        self.state = "failed"
        self._fail_all()

    def _fail_all(self) -> None:
        for encoding in list(self._running.values()):
            self._worker.abort(encoding.id)
            self._fail(encoding, self._gone())

    def _fail(self, encoding: Encoding, error: SkerryError) -> None:
        del self._running[encoding.id]
        encoding.sink(failed_event(encoding.stream, error))

    def _gone(self) -> SkerryError:
        return unavailable(f"the encoder of {self.model}", self.state)
