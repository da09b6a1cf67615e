"""A thread that works for others on something that it owns, until it is closed or fails."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Thread

RETRY_AFTER = 1.0  # seconds; a full inbox is emptied by the next step


class WorkerStopped(Exception):
    """The worker is closed, or what it owns crashed; it takes no more requests."""


class WorkerThread:
    """What workers have in common: `work` runs once, then `close_owned` frees what the worker owns.

    `_wake` is notified when there may be something to do; `work` returns when `_is_closing`. What
    `work` raises goes to `failed`, on the thread.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        *,
        close_owned: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._wake = Condition()  # guards what the worker and its callers share
        self._is_closing = False
        self._error: BaseException | None = None
        self._name = name
        self._work = work
        self._close_owned = close_owned
        self._failed = failed
        self._thread = Thread(target=self._run, name=f"skerry-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Finish what is in progress, drop what waits, free what is owned, join the thread.

        Idempotent; not from the worker's thread.
        """
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread.ident is None:  # never started
            self._close_owned()
        else:
            self._thread.join()

    def _refuse(self) -> None:
        """Raise WorkerStopped, saying why. The caller holds `_wake`."""
        if self._error is not None:
            raise WorkerStopped(f"the {self._name} crashed") from self._error
        raise WorkerStopped("the worker is closed")

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            with self._wake:
                self._error = error
            self._failed(error)
        finally:
            self._close_owned()
