"""What a joined edge shares with all others: the root of cache keys, and who may call it."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType

from skerry_cli.home.errors import StateError
from skerry_cli.home.keys import keep_private
from skerry_cli.home.state import Home
from skerry_regions.control.machines.calls import ControlAway, ControlRefused
from skerry_regions.control.machines.link import ControlLink
from skerry_regions.control.machines.messages import Credentials

LOOK_SECONDS = 2.0

logger = logging.getLogger(__name__)


class CredentialsFollower:
    """While entered, the home's files are as the control plane's; its last word stands while it is
    away. The block waits for the first one: without it an edge would draw a secret of its own."""

    def __init__(self, link: ControlLink, home: Home, *, has_state: bool = False) -> None:
        """`has_state`: tokens and secret are those of NATS servers, by which the control plane
        goes, too: only issuers are followed here."""
        self._link = link
        self._home = home
        self._has_state = has_state
        self._known = ""  # digest of the tokens here
        self._is_away = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="credentials", daemon=True)

    def __enter__(self) -> CredentialsFollower:
        self._look()
        while not (self._has_state or self._home.secret.exists()):
            time.sleep(LOOK_SECONDS)
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
            self._follow_once()
        except (ControlAway, ControlRefused, StateError, OSError) as error:  # or a full disk
            if not self._is_away:
                logger.warning("API tokens stay as they are: %s", error)
            self._is_away = True
        else:
            self._is_away = False

    def _follow_once(self) -> None:
        """Raises ControlAway, ControlRefused, StateError or OSError."""
        told = self._link.call("GET", f"/credentials?known={self._known}", Credentials)
        if not self._has_state:
            keep_private(self._home.secret, told.secret)
        if told.tokens is not None:
            if not self._has_state:
                keep_private(self._home.tokens, told.tokens)
            if told.issuers:
                keep_private(self._home.issuers, told.issuers)
            elif told.issuers is not None:
                self._home.issuers.unlink(missing_ok=True)
            self._known = told.digest
