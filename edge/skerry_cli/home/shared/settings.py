"""Tokens, limits, catalog and key root of a home: its own, or those that all homes share.

With `state: nats://…` a process that uses them follows what the servers have, and keeps the home's
files as they are there: the last picture, from which it serves while servers are away. Everything
that reads these files goes on as with files of the home's own.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING

from skerry_cli.home.errors import CannotStart, StateError
from skerry_cli.home.shared_state import NEEDS_NATS, STATE_VARIABLE, chosen_state, nats_clients
from skerry_cli.home.state import Home
from skerry_cli.output import note
from skerry_edge.gate.token_file import TokenStoreError
from skerry_edge.gate.tokens import TokenStore

if TYPE_CHECKING:
    from skerry_edge.shared.nats_settings import NatsSettings

FIRST_SECONDS = 5.0  # that a start waits for servers
LOOK_SECONDS = 0.1


def token_store(home: Home, settings: NatsSettings | None) -> TokenStore:
    """Return the tokens of the home, or of all homes. Raises TokenStoreError."""
    if settings is None:
        return TokenStore(home.tokens)
    from skerry_edge.shared.nats_tokens import NatsTokenRecords

    return TokenStore(NatsTokenRecords(home.tokens, settings))


@contextlib.contextmanager
def opened_tokens(home: Home, environ: Mapping[str, str], name: str) -> Generator[TokenStore]:
    """Yield the tokens of the home, or of all homes. Raises TokenStoreError or `CannotStart`."""
    with shared_settings(home, environ, name) as settings:
        yield token_store(home, settings)


def share_edits(home: Home, environ: Mapping[str, str]) -> None:
    """Give all homes what was edited in this one, where they share it. If that cannot be now, the
    next process that serves from this home does."""
    try:
        with shared_settings(home, environ, "skerry"):
            pass
    except CannotStart as error:
        note(f"Other homes get this later: {error}.")


@contextlib.contextmanager
def shared_settings(
    home: Home, environ: Mapping[str, str], name: str, *, serves: bool = False
) -> Generator[NatsSettings | None]:
    """Have the home's files be those of all homes while entered; None where they are its own.

    Who `serves` has the platform's key root, too, and waits for it in a home that has none. `name`
    is what servers list the connection as. Raises `CannotStart`.
    """
    url = chosen_state(home, environ)
    if url is None:
        yield None
        return
    try:
        from skerry_cli.home.shared.shared_home import SharedHome
        from skerry_regions.drivers.jetstream.answers import StateUnfit
    except ImportError:
        raise CannotStart(NEEDS_NATS) from None
    try:
        clients = nats_clients(home, environ, url, STATE_VARIABLE)
        shared = SharedHome(home, url, name=name, has_root=serves, make_client=clients)
        shared.settings.open()
    except StateUnfit as error:
        raise CannotStart(f"state {url}: {error}") from None
    except (StateError, TokenStoreError) as error:
        raise CannotStart(str(error)) from None
    try:
        give_up, is_told = time.monotonic() + FIRST_SECONDS, False
        while not shared.settings.wait(LOOK_SECONDS):
            if shared.problem:
                raise CannotStart(shared.problem)
            if time.monotonic() < give_up:
                continue
            if not serves or home.secret.exists():
                break  # with what was there last
            if not is_told:
                note(f"Waiting for the platform's key root: {url} does not answer.")
            is_told = True
        yield shared.settings
    finally:
        shared.settings.close()
