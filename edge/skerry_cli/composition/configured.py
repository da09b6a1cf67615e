"""What an edge follows of the home's files while it runs: limits, tokens, issuers of logins,
TLS."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from skerry.errors import AuthenticationError
from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.shared_state import stream_of
from skerry_cli.home.state import Home, known_config
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.meters import Rates
from skerry_edge.gate.oidc.issuers import load_issuers
from skerry_edge.gate.oidc.logins import Logins, load_libraries
from skerry_edge.gate.quotas import load_quotas
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.http.tls import Certificate
from skerry_edge.limits import Limits
from skerry_edge.money.spending import Spending
from skerry_edge.money.sqlite_spending import SqliteSpending
from skerry_edge.reload import Followed, following
from skerry_regions.drivers.jetstream.tables import MONEY, RATES
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.located_yaml import YamlError
from skerry_regions.zones import GLOBAL

if TYPE_CHECKING:
    from skerry_regions.drivers.jetstream.connection import JetStream

LOOK_SECONDS = 1.0  # between looks for tokens that have expired


@asynccontextmanager
async def configured(
    home: Home,
    catalog: Catalog,
    tokens: TokenStore,
    limits: Limits,
    *,
    logins: Logins,
    edges: Callable[[], int] = lambda: 1,
    certificate: Certificate | None = None,
    unwritten: Callable[[], float] = lambda: 0.0,
    state: JetStream | None = None,
) -> AsyncGenerator[Admission]:
    """Yield the admission of one of `edges` edges; while entered, it follows the files.

    Money is in the `state` of the platform, or where there is none in the home.

    Raises `CannotStart` for files that cannot be used. Afterwards such a file changes nothing.
    """
    with raised_as(CannotStart, YamlError):
        quotas = load_quotas(home.limits, catalog)
    spending, rates = open_spending(home, state, edges), open_rates(state)
    admission = Admission(
        max_requests=limits.max_requests,
        quotas=quotas,
        edges=edges,
        spending=spending,
        unwritten=unwritten,
        rates=rates,
    )

    def read_limits() -> Callable[[], None]:
        quotas = load_quotas(home.limits, catalog)
        return functools.partial(admission.hold_to, quotas)

    followed = [
        Followed((home.limits,), read_limits),
        Followed((home.tokens,), lambda: functools.partial(end_revoked, admission, tokens, logins)),
        following_issuers(home, logins),
    ]
    if certificate is not None:
        followed.append(certificate.followed())
    expiring = asyncio.create_task(_end_expired(admission, tokens, logins), name="expire tokens")
    try:
        async with following(followed):
            yield admission
    finally:
        expiring.cancel()
        await logins.close()
        if rates is not None:
            await rates.close()
        await spending.close()


def open_spending(
    home: Home, state: JetStream | None, edges: Callable[[], int] = lambda: 1
) -> Spending:
    """Return what counts money. Called on an event loop."""
    if state is None:
        return SqliteSpending(home.spending)
    from skerry_edge.money.nats_spending import NatsSpending

    return NatsSpending(stream_of(state, MONEY, GLOBAL), edges=edges)


def open_rates(state: JetStream | None) -> Rates | None:
    """Return how edges share limits where they do not have equal parts. Called on an event
    loop."""
    if state is None:
        return None
    from skerry_edge.shared.nats_rates import NatsRates

    return NatsRates(stream_of(state, RATES, GLOBAL))


def following_issuers(home: Home, logins: Logins) -> Followed:
    """Take in the home's issuers, and return how to follow them. Raises `CannotStart`."""
    platform = known_config(home).account_id

    def read() -> Callable[[], None]:
        issuers = load_issuers(home.issuers, platform)
        if issuers:
            load_libraries()
        return functools.partial(logins.follow, issuers)

    with raised_as(CannotStart, YamlError):
        read()()
    return Followed((home.issuers,), read)


def end_revoked(admission: Admission, tokens: TokenStore, logins: Logins) -> None:
    """End what still runs for tokens that work no more."""
    error = AuthenticationError("This API token was revoked, or has expired.")

    @functools.cache  # of this look
    def is_live(token: str) -> bool:
        return logins.is_live(token) if ":" in token else tokens.is_live(token)

    admission.end(lambda by: bool(by.caller.token) and not is_live(by.caller.token), error)


async def _end_expired(admission: Admission, tokens: TokenStore, logins: Logins) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        end_revoked(admission, tokens, logins)
