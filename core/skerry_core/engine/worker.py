"""An engine on a thread of its own: a bounded inbox in, one callback per step out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from concurrent.futures import Future

from skerry_core.engine.engine import Engine
from skerry_core.engine.figures import Statistics
from skerry_core.engine.sequence import Sequence
from skerry_core.ranks import DividedRunner, RankLost
from skerry_core.request import EngineOverloaded, KVBlock, Output
from skerry_core.worker_thread import RETRY_AFTER, WorkerThread

logger = logging.getLogger(__name__)

SAVE_SECONDS = 1.0  # at most, on a stop, to write the prefix cache into the second tier

Errand = Callable[[Engine], None]


class Worker(WorkerThread):
    """Feeds an engine, which it owns, and passes its outputs on.

    `deliver` gets the outputs of each step, all in one list that may be empty, and `failed` the
    error that stopped the engine; both run on the engine's thread and should do no more than hand
    over to another. Each accepted sequence ends with one last output, or with the one call of
    `failed`.

    While there is nothing to do the thread sleeps on a condition. A sequence for which the second
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
        super().__init__("engine", self._step_on, close_owned=engine.close, failed=failed)
        self._engine = engine
        self._deliver = deliver
        self._inbox_size = inbox_size
        self._inbox: list[Sequence] = []
        self._restoring: dict[str, Sequence] = {}  # wait for blocks of the second tier
        self._aborts: set[str] = set()
        self._errands: list[Errand] = []
        if isinstance(engine.runner, DividedRunner):
            engine.runner.ranks.when_lost(self._lose)

    # --- from any thread -------------------------------------------------------------------------

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence for the next step.

        Raises RequestRejected, EngineOverloaded, or WorkerStopped.
        """
        restoring = self._admit(sequence)
        if restoring is not None:
            restoring.add_done_callback(functools.partial(self._restored, sequence))

    def _admit(self, sequence: Sequence) -> Future[tuple[KVBlock, ...]] | None:
        with self._wake:
            if self._is_closing or self._error is not None:
                self._refuse()
            arrived = len(self._inbox) + len(self._restoring)
            if arrived >= self._inbox_size:
                message = f"{arrived} requests arrived during the running step"
                raise EngineOverloaded(message, RETRY_AFTER)
            self._engine.admit(sequence)
            restoring = self._engine.restore(sequence)
            if restoring is None:
                self._inbox.append(sequence)
                self._wake.notify()
            else:
                self._restoring[sequence.id] = sequence
            return restoring

    def _restored(self, sequence: Sequence, future: Future[tuple[KVBlock, ...]]) -> None:
        """Queue the sequence with what was found. On the reader's thread."""
        kv: tuple[KVBlock, ...] = ()
        if not future.cancelled():
            if (error := future.exception()) is None:
                kv = future.result()
            else:  # a cache must not cost an answer
                logger.error("reading the second tier failed", exc_info=error)
        with self._wake:
            if self._restoring.pop(sequence.id, None) is not None:  # else it did not wait
                sequence.kv = kv
                self._inbox.append(sequence)
                self._wake.notify()

    def abort(self, sequence_id: str) -> None:
        """End a sequence and free its blocks before the next step. Unknown or ended: ignored."""
        with self._wake:
            if self._engine.is_admitted(sequence_id):
                self._aborts.add(sequence_id)
                self._stop_waiting([sequence_id])
                self._wake.notify()

    def between_steps(self, errand: Errand) -> None:
        """Have something done to the engine before the next step, on its thread.

        Errands go in the order in which they come, before requests that came later. They must be
        short and not raise. A worker that has ended does none.
        """
        with self._wake:
            if self._error is None and not self._is_closing:
                self._errands.append(errand)
                self._wake.notify()

    def statistics(self) -> Statistics:
        """Return figures of now. Never waits for the step in progress."""
        return self._engine.statistics()

    def _lose(self, error: RankLost) -> None:
        """Fail at once: the thread may wait for the rank that is lost."""
        with self._wake:
            self._error = self._error or error
        self._failed(error)

    # --- on the engine's thread ------------------------------------------------------------------

    def _step_on(self) -> None:
        while self._take_inbox():
            self._deliver(self._engine.step())
        if outputs := self._engine.abort_all():
            self._deliver(outputs)
        self._engine.save_cache(SAVE_SECONDS)

    def _take_inbox(self) -> bool:
        """Wait for work and give it to the engine; False when it is time to stop."""
        with self._wake:
            self._wake.wait_for(self._has_work)
            if self._is_closing:
                self._stop_waiting(list(self._restoring))
            arrivals, self._inbox = self._inbox, []
            aborts, self._aborts = self._aborts, set()
            errands, self._errands = self._errands, []
            closing = self._is_closing
        for errand in errands:
            errand(self._engine)
        for sequence in arrivals:
            self._engine.enqueue(sequence)
        for sequence_id in aborts:
            self._engine.abort(sequence_id)
        return not closing

    def _stop_waiting(self, sequence_ids: list[str]) -> None:
        """Queue sequences without the blocks that are still on their way."""
        for sequence_id in sequence_ids:
            if (sequence := self._restoring.pop(sequence_id, None)) is not None:
                self._inbox.append(sequence)

    def _has_work(self) -> bool:
        waiting = self._inbox or self._aborts or self._errands
        return bool(self._is_closing or waiting or self._engine.has_work)
