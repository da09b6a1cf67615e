"""Sessions of the console, in the edge's memory, each as good as its token."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.token_file import digest_of
from skerry_edge.gate.tokens import TokenStore

SESSION_SECONDS = 8 * 3600
MAX_SESSIONS = 1024
MAX_OF_TOKEN = 16  # beyond, its oldest ends


@dataclass(frozen=True, slots=True)
class Session:
    """One browser's. It holds no token's secret."""

    principal: Principal  # as it was at the login
    ends_at: float  # Unix seconds

    @property
    def holder(self) -> str:
        return self.principal.login or self.principal.token_id


class Sessions:
    """Sessions by the hash of their cookie. Gone with the process. `clock` gives Unix seconds."""

    def __init__(
        self, tokens: TokenStore, logins: Logins | None, clock: Callable[[], float]
    ) -> None:
        self._tokens = tokens
        self._logins = logins
        self._clock = clock
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # oldest first

    def begin(self, principal: Principal) -> str:
        """Log a caller in; return what the cookie is to hold: 256 random bits."""
        now = self._clock()
        end = now + SESSION_SECONDS
        if principal.expires_at is not None:
            end = min(end, float(principal.expires_at))
        session = Session(principal, end)
        for key in [key for key, each in self._sessions.items() if each.ends_at <= now]:
            del self._sessions[key]
        own = [key for key, each in self._sessions.items() if each.holder == session.holder]
        for key in own[: max(0, len(own) + 1 - MAX_OF_TOKEN)]:
            del self._sessions[key]
        while len(self._sessions) >= MAX_SESSIONS:
            self._sessions.popitem(last=False)
        secret = secrets.token_urlsafe(32)
        self._sessions[digest_of(secret)] = session
        return secret

    def find(self, secret: str) -> Session | None:
        """Return the session of a cookie, with what its token may do now; None when it is over, or
        the token was revoked."""
        key = digest_of(secret)
        session = self._sessions.get(key)
        if session is None:
            return None
        principal = self._principal(session) if self._clock() < session.ends_at else None
        if principal is None:
            del self._sessions[key]
            return None
        return Session(principal, session.ends_at)

    def end(self, secret: str) -> None:
        """Log a browser out. Idempotent."""
        self._sessions.pop(digest_of(secret), None)

    def _principal(self, session: Session) -> Principal | None:
        principal = session.principal
        if not principal.login:
            return self._tokens.principal(principal.token_id)
        is_live = self._logins is not None and self._logins.is_live(principal.login)
        return principal if is_live else None
