"""What a joined edge shares with all others: the root of cache keys, and the API tokens of now."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from skerry_edge.cli.state import Home, keep_private
from skerry_regions.control_link import ControlAway, ControlLink, ControlRefused
from skerry_regions.machine_messages import Credentials

LOOK_SECONDS = 2.0

logger = logging.getLogger(__name__)


class CredentialsFollower:
    """While entered, the home's files are as the control plane's; its last word stands while it is
    away. The first reading is before the block."""

    def __init__(self, link: ControlLink, home: Home) -> None:
        self._link = link
        self._home = home
        self._known = ""  # digest of the tokens here
        self._is_away = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="credentials", daemon=True)

    def __enter__(self) -> CredentialsFollower:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        try:
            told = self._link.call("GET", f"/credentials?known={self._known}", Credentials)
        except (ControlAway, ControlRefused) as error:
            if not self._is_away:
                logger.warning("API tokens stay as they are: %s", error)
            self._is_away = True
            return
        self._is_away = False
        keep_private(self._home.secret, told.secret)
        if told.tokens is not None:
            keep_private(self._home.tokens, told.tokens)
            self._known = told.digest
