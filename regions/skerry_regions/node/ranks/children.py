"""Ranks that are child processes of a node, or of another rank, on the same machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable

from skerry.runners import RunnerName
from skerry_core.ranks import RankLost
from skerry_core.runner import RunnerSetup
from skerry_regions.node.ranks.channel import SILENCE_SECONDS, SocketChannel
from skerry_regions.node.ranks.order import RankOrder, StoredModel, encode
from skerry_regions.node.ranks.stream import RankStream

_MODULE = "skerry_regions.node.ranks.child"


class LossWatch:
    """Calls back when a rank is lost; the part of `Ranks` that is the same wherever they run."""

    def __init__(
        self, runner: RunnerName, form: str = "", *, silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        """`form` says how the model is divided, and why; a rank from which nothing comes for so
        many seconds is lost."""
        self.form = form
        self._runner: RunnerName = runner
        self._silence_seconds = silence_seconds
        self._lock = threading.Lock()
        self._lost: RankLost | None = None
        self._callbacks: list[Callable[[RankLost], None]] = []

    def when_lost(self, call: Callable[[RankLost], None]) -> None:
        """See `Ranks`."""
        with self._lock:
            if self._lost is None:
                self._callbacks.append(call)
                return
        call(self._lost)

    def _order(
        self,
        setup: RunnerSetup,
        stream: RankStream,
        name: str,
        ended: Callable[[RankLost], None],
        of: StoredModel | None = None,
    ) -> SocketChannel:
        """Return the channel to a rank's process, which has its order. Raises RankLost."""

        def progress(what: str, share: float) -> None:
            setup.progress(f"{name}: {what}", share)

        channel = SocketChannel(
            stream, name, progress=progress, ended=ended, silence_seconds=self._silence_seconds
        )
        channel.send(encode(RankOrder.to(self._runner, setup, of)))
        return channel

    def _ended(self, error: RankLost) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = error
        for call in self._callbacks:
            call(error)


class LocalRanks(LossWatch):
    """`Ranks` in processes that write to this one's log and end with it, however it ends."""

    def start(self, setup: RunnerSetup) -> SocketChannel:
        """Start a rank; see `Ranks`."""
        ours, theirs = socket.socketpair()
        name = f"rank {setup.rank}"
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs.fileno())],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is the node's, which closes the channel
            )
        except OSError as error:
            ours.close()
            raise RankLost(f"{name} does not start: {error}") from None
        finally:
            theirs.close()

        def ended(error: RankLost) -> None:
            process.kill()  # it may be stopped, and would not notice
            self._ended(error)

        threading.Thread(target=process.wait, name=f"{name} ends", daemon=True).start()
        return self._order(setup, ours, name, ended)
