"""An encoder on a thread: texts of many requests in, computed together, vectors out.

The encoder is readied by the first request: until then it holds no memory but a mapped file's name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from skerry_core.request import EngineOverloaded, Priority, RequestRejected
from skerry_core.weights.tensors import Float32
from skerry_core.worker_thread import RETRY_AFTER, WorkerThread

if TYPE_CHECKING:  # it imports numba, which a process without an encoder need not
    from skerry_core.encoder.encoder import Encoder, Kind

TURN_TOKENS = 8192  # computed at once: about a second on one core, so that an abort saves the rest
QUEUED_TOKENS = 1 << 20  # waiting at most: a minute or two


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeRequest:
    """Texts to be turned into one vector each, or to be classified."""

    id: str  # unique among those in progress
    texts: tuple[tuple[int, ...], ...]  # token ids, special ones included
    kind: Kind = "mean"
    normalize: bool = True  # of vectors by pooling
    second_starts: tuple[int, ...] = ()  # of texts of two parts: tokens before the second one
    priority: Priority = Priority.INTERACTIVE

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderStatistics:
    """An encoder at one moment. `turns` only grows."""

    turns: int
    running: int  # requests being computed; none while the encoder gets ready
    waiting: int


class EncoderWorker(WorkerThread):
    """Feeds an encoder, which it owns: interactive requests first, in each class first come, first
    served. A turn takes one class, so that interactive ones wait for at most one turn of others.

    `deliver` gets a request's id and its vectors, f32[texts, hidden or classes]; `failed` the error
    that stopped the encoder. Both run on the worker's thread and should do no more than hand over
    to another. A request that is aborted before its turn gets nothing.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        deliver: Callable[[str, Float32], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__("encoder", self._take_turns, close_owned=encoder.close, failed=failed)
        self._encoder = encoder
        self._deliver = deliver
        self._queues: dict[Priority, deque[EncodeRequest]] = {each: deque() for each in Priority}
        self._queued_tokens = 0
        self._aborted: set[str] = set()
        self._turns = self._running = 0

    # --- from any thread -------------------------------------------------------------------------

    def submit(self, request: EncodeRequest) -> None:
        """Queue a request. Raises RequestRejected, EngineOverloaded or WorkerStopped."""
        if request.kind == "classes" and not self._encoder.num_classes:
            raise RequestRejected("the model has no head for classification")
        if len(request.second_starts) not in (0, len(request.texts)):
            raise RequestRejected(f"{len(request.second_starts)} second parts of so many texts")
        try:
            for text in request.texts:
                self._encoder.check(text)
        except ValueError as error:
            raise RequestRejected(str(error)) from None
        with self._wake:
            if self._is_closing or self._error is not None:
                self._refuse()
            if self._queued_tokens + request.num_tokens > QUEUED_TOKENS:
                message = f"{self._queued_tokens} tokens wait to be encoded"
                raise EngineOverloaded(message, RETRY_AFTER)
            self._queues[request.priority].append(request)
            self._queued_tokens += request.num_tokens
            self._wake.notify()

    def abort(self, request_id: str) -> None:
        """Leave a request out if its turn has not come. Unknown or done: ignored."""
        with self._wake:
            if any(request.id == request_id for request in chain(*self._queues.values())):
                self._aborted.add(request_id)

    def statistics(self) -> EncoderStatistics:
        """Return figures of now. Never waits for the turn in progress."""
        waiting = sum(map(len, self._queues.values()))
        return EncoderStatistics(turns=self._turns, running=self._running, waiting=waiting)

    # --- on the worker's thread ------------------------------------------------------------------

    def _take_turns(self) -> None:
        while turn := self._next_turn():
            self._encoder.warm_up(lambda message, share: None)
            self._running = len(turn)
            self._compute(turn)
            self._running, self._turns = 0, self._turns + 1

    def _next_turn(self) -> list[EncodeRequest]:
        """Wait for requests; those of the next turn, or none when it is time to stop."""
        with self._wake:
            while True:
                self._wake.wait_for(lambda: self._is_closing or any(self._queues.values()))
                if self._is_closing:
                    return []
                for priority in Priority:
                    if turn := self._take(self._queues[priority]):
                        return turn

    def _take(self, queue: deque[EncodeRequest]) -> list[EncodeRequest]:
        turn: list[EncodeRequest] = []
        tokens = 0
        while queue and (not turn or tokens + queue[0].num_tokens <= TURN_TOKENS):
            request = queue.popleft()
            self._queued_tokens -= request.num_tokens
            if request.id in self._aborted:
                self._aborted.remove(request.id)
            else:
                turn.append(request)
                tokens += request.num_tokens
        return turn

    def _compute(self, turn: list[EncodeRequest]) -> None:
        """Compute a turn; requests that want the same kind of vector run together."""
        kinds: dict[tuple[Kind, bool], list[EncodeRequest]] = {}
        for request in turn:
            kinds.setdefault((request.kind, request.normalize), []).append(request)
        for (kind, normalize), requests in kinds.items():
            vectors = self._vectors(kind, normalize, requests)
            start = 0
            for request in requests:
                end = start + len(request.texts)
                self._deliver(request.id, vectors[start:end])
                start = end

    def _vectors(self, kind: Kind, normalize: bool, requests: list[EncodeRequest]) -> Float32:
        texts = [text for request in requests for text in request.texts]
        if kind != "classes":
            return self._encoder.encode(texts, pooling=kind, normalize=normalize)
        second_starts = [
            second
            for request in requests
            for second in request.second_starts or map(len, request.texts)
        ]
        return self._encoder.classify(texts, second_starts=second_starts)
