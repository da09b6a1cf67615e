"""The console of a control plane, beside its API: what is wanted and what is there, history, audit.

An edge's sessions reach no control plane: whoever takes an edge over, or its machine, operates
nothing. The control plane checks tokens, cookies and one-time codes itself, and its codes follow
from a key that no machine is given.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from skerry_edge.console.codes import CONTROL_PLANE, LoginCodes
from skerry_edge.console.sessions import Session
from skerry_edge.console.site import ConsoleSite
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.tokens import TokenStore
from skerry_regions.control.api.access import INSIDE, ControlCaller
from skerry_regions.control.api.operations import openapi_document
from skerry_regions.spec_types import ConsoleMode

OF_PAGES = frozenset({b"origin", b"sec-fetch-site"})
"""Headers by which the API knows web pages, which change nothing: this one is its own."""


class ControlConsole(ConsoleSite):
    """The console of a control plane, whose API is `app`."""

    site = "control"

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: TokenStore,
        logins: Logins | None,
        key: bytes,
        caller_of: Callable[[Principal], ControlCaller],
        mode: ConsoleMode,
        hosts: frozenset[str],
        edge_url: Callable[[], str] = str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """One-time codes follow from `key`. `hosts` are names that it answers to, where `mode` is
        `on`; `edge_url` is where an edge is, or empty."""
        super().__init__(
            app,
            openapi_document,
            tokens=tokens,
            logins=logins,
            codes=LoginCodes(key, CONTROL_PLANE, clock),
            mode=mode,
            hosts=hosts,
            clock=clock,
        )
        self._caller_of = caller_of
        self._edge_url = edge_url

    def told(self, session: Session) -> dict[str, Any]:
        rights = sorted(self._caller_of(session.principal).rights)
        return {"site": self.site, "rights": rights}

    def elsewhere(self, session: Session) -> str:
        return self._edge_url() if self._caller_of(session.principal).rights else ""

    async def serve_as(
        self, principal: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        headers = [each for each in scope["headers"] if each[0] not in OF_PAGES]
        inner = {**scope, "headers": headers, INSIDE: self._caller_of(principal)}
        await self._app(inner, receive, send)

    def answered(self, method: str, status: int) -> None:
        """Count nothing: the control plane's metrics are of what it does."""
