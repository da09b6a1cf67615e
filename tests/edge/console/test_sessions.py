"""Sessions under a clock of their own: their end, and how many there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.clock import Clock

from skerry_edge.console.codes import CODE_SECONDS, LoginCodes, new_code
from skerry_edge.console.sessions import MAX_OF_TOKEN, MAX_SESSIONS, SESSION_SECONDS, Sessions
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.tokens import TokenStore

ACCOUNT = "0" * 32


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def tokens(tmp_path: Path, clock: Clock) -> TokenStore:
    return TokenStore(tmp_path / "tokens.json", clock=clock)


def principal_of(tokens: TokenStore, expires_at: int | None = None) -> Principal:
    token, _ = tokens.create(account_id=ACCOUNT, expires_at=expires_at, now=0)
    principal = tokens.authenticate(token)
    assert principal is not None
    return principal


def test_it_lasts_eight_hours(tokens: TokenStore, clock: Clock) -> None:
    sessions = Sessions(tokens, None, clock)
    secret = sessions.begin(principal_of(tokens))
    clock.now += SESSION_SECONDS - 1
    assert sessions.find(secret) is not None
    clock.now += 1
    assert sessions.find(secret) is None
    assert len(sessions._sessions) == 0


def test_it_ends_with_a_token_that_expires_sooner(tokens: TokenStore, clock: Clock) -> None:
    sessions = Sessions(tokens, None, clock)
    secret = sessions.begin(principal_of(tokens, expires_at=1060))
    found = sessions.find(secret)
    assert found is not None
    assert found.ends_at == 1060.0
    clock.now = 1060.0
    assert sessions.find(secret) is None


def test_a_token_has_a_few_and_all_together_are_bounded(tokens: TokenStore, clock: Clock) -> None:
    sessions = Sessions(tokens, None, clock)
    one = principal_of(tokens)
    secrets = [sessions.begin(one) for _ in range(MAX_OF_TOKEN + 1)]
    assert [sessions.find(each) is not None for each in secrets] == [False] + [True] * MAX_OF_TOKEN
    for _ in range(-(-MAX_SESSIONS // MAX_OF_TOKEN)):
        other = principal_of(tokens)
        for _ in range(MAX_OF_TOKEN):
            sessions.begin(other)
    assert len(sessions._sessions) == MAX_SESSIONS
    assert sessions.find(secrets[-1]) is None


def test_a_login_of_an_issuer_lasts_as_it_counts(tokens: TokenStore, clock: Clock) -> None:
    logins = Logins(ACCOUNT, wall_clock=clock)
    sessions = Sessions(tokens, logins, clock)
    principal = Principal(
        token_id="x", account_id=ACCOUNT, scopes=frozenset({"run"}), login="own:lena"
    )
    secret = sessions.begin(principal)
    assert sessions.find(secret) is None  # no issuer vouches for it
    logins._live["own:lena"] = 2000.0
    secret = sessions.begin(principal)
    found = sessions.find(secret)
    assert found is not None
    assert found.principal == principal
    clock.now = 2000.0
    assert sessions.find(secret) is None


def test_a_code_is_void_after_its_minute(clock: Clock) -> None:
    secret, token_id = b"s" * 32, "0123456789abcdef"
    codes = LoginCodes(secret, "edge-1", clock)
    code = new_code(secret, "edge-1", token_id, clock.now)
    late = new_code(secret, "edge-1", token_id, clock.now)
    clock.now += CODE_SECONDS
    assert codes.take(code) == token_id
    assert codes.take(code) is None
    clock.now += 1
    assert codes.take(late) is None


@pytest.mark.parametrize("place", [0, 17, -1])
def test_a_code_that_was_changed_is_none(clock: Clock, place: int) -> None:
    secret = b"s" * 32
    code = new_code(secret, "edge-1", "0123456789abcdef", clock.now)
    other = "1" if code[place] != "1" else "2"
    changed = code[:place] + other + (code[place + 1 :] if place != -1 else "")
    assert LoginCodes(secret, "edge-1", clock).take(changed) is None
