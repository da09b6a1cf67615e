"""An engine on a thread of its own: a bounded inbox in, one callback per step out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from threading import Condition, Thread

from skerry_core.engine.engine import Engine
from skerry_core.engine.figures import Statistics
from skerry_core.request import EngineOverloaded, KVBlock, Output, Request

logger = logging.getLogger(__name__)

RETRY_AFTER = 1.0  # seconds; a full inbox is emptied by the next step
SAVE_SECONDS = 1.0  # at most, on a stop, to write the prefix cache into the second tier

Errand = Callable[[Engine], None]


class WorkerStopped(Exception):
    """The worker is closed, or its engine crashed; it takes no more requests."""


class Worker:
    """Feeds an engine, which it owns, and passes its outputs on.

    `deliver` gets the outputs of each step, all in one list that may be empty, and `failed` the
    error that stopped the engine; both run on the engine's thread and should do no more than hand
    over to another. Each accepted request ends with one last output, or with the one call of
    `failed`.

    While there is nothing to do the thread sleeps on a condition. A request for which the second
    tier has blocks reaches the engine together with them.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        deliver: Callable[[list[Output]], None],
        failed: Callable[[BaseException], None],
        inbox_size: int = 1024,
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self._failed = failed
        self._inbox_size = inbox_size
        self._thread = Thread(target=self._run, name="skerry-engine", daemon=True)
        self._wake = Condition()  # guards all below
        self._inbox: list[Request] = []
        self._restoring: dict[str, Request] = {}  # wait for blocks of the second tier
        self._aborts: set[str] = set()
        self._errands: list[Errand] = []
        self._closing = False
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    # --- from any thread -------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request for the next step.

        Raises RequestRejected, EngineOverloaded, or WorkerStopped.
        """
        restoring = self._admit(request)
        if restoring is not None:
            restoring.add_done_callback(functools.partial(self._restored, request))

    def _admit(self, request: Request) -> Future[tuple[KVBlock, ...]] | None:
        with self._wake:
            if self._error is not None:
                raise WorkerStopped("the engine crashed") from self._error
            if self._closing:
                raise WorkerStopped("the worker is closed")
            arrived = len(self._inbox) + len(self._restoring)
            if arrived >= self._inbox_size:
                message = f"{arrived} requests arrived during the running step"
                raise EngineOverloaded(message, RETRY_AFTER)
            self._engine.admit(request)
            restoring = self._engine.restore(request)
            if restoring is None:
                self._inbox.append(request)
                self._wake.notify()
            else:
                self._restoring[request.id] = request
            return restoring

    def _restored(self, request: Request, future: Future[tuple[KVBlock, ...]]) -> None:
        """On the reader's thread: the request goes on, with what was found."""
        kv: tuple[KVBlock, ...] = ()
        if not future.cancelled():
            if (error := future.exception()) is None:
                kv = future.result()
            else:  # a cache must not cost an answer
                logger.error("reading the second tier failed", exc_info=error)
        with self._wake:
            if self._restoring.pop(request.id, None) is not None:  # else it did not wait
                self._inbox.append(replace(request, kv=kv))
                self._wake.notify()

    def abort(self, request_id: str) -> None:
        """End a request and free its blocks before the next step. Unknown or ended: ignored."""
        with self._wake:
            if self._engine.is_admitted(request_id):
                self._aborts.add(request_id)
                self._stop_waiting([request_id])
                self._wake.notify()

    def between_steps(self, errand: Errand) -> None:
        """Have something done to the engine before the next step, on its thread.

        Errands go in the order in which they come, before requests that came later. They must be
        short and not raise. A worker that has ended does none.
        """
        with self._wake:
            if self._error is None and not self._closing:
                self._errands.append(errand)
                self._wake.notify()

    def statistics(self) -> Statistics:
        """Figures of now. Never waits for the step in progress."""
        return self._engine.statistics()

    def close(self) -> None:
        """Finish the step in progress, cancel what is left, close the engine, join the thread.

        Idempotent; not from the engine's thread.
        """
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.ident is None:  # never started
            self._engine.close()
        else:
            self._thread.join()

    # --- on the engine's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_inbox():
                self._deliver(self._engine.step())
            if outputs := self._engine.abort_all():
                self._deliver(outputs)
            self._engine.save_cache(SAVE_SECONDS)
        except BaseException as error:
            with self._wake:
                self._error = error
            self._failed(error)
        finally:
            self._engine.close()

    def _take_inbox(self) -> bool:
        """Wait for work and give it to the engine; False when it is time to stop."""
        with self._wake:
            self._wake.wait_for(self._has_work)
            if self._closing:
                self._stop_waiting(list(self._restoring))
            arrivals, self._inbox = self._inbox, []
            aborts, self._aborts = self._aborts, set()
            errands, self._errands = self._errands, []
            closing = self._closing
        for errand in errands:
            errand(self._engine)
        for request in arrivals:
            self._engine.enqueue(request)
        for request_id in aborts:
            self._engine.abort(request_id)
        return not closing

    def _stop_waiting(self, request_ids: list[str]) -> None:
        """Queue requests without the blocks that are still on their way."""
        for request_id in request_ids:
            if (request := self._restoring.pop(request_id, None)) is not None:
                self._inbox.append(request)

    def _has_work(self) -> bool:
        waiting = self._inbox or self._aborts or self._errands
        return bool(self._closing or waiting or self._engine.has_work)
