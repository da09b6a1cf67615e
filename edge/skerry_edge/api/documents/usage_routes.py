"""`GET …/ai/usage` and `…/ai/caps`: what an account used, by the journal of this edge's zone, and
what is spent of its caps, by the file of this home."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

from msgspec import Struct
from starlette.responses import Response

from skerry.errors import InvalidInput, Overloaded, PermissionDenied, Unavailable
from skerry_edge.api.edge_request import EdgeRequest
from skerry_edge.envelopes import JSONBytes, encode, envelope
from skerry_edge.gate.principal import Principal
from skerry_edge.gate.token_file import TokenStoreError
from skerry_edge.generation.edge import Edge
from skerry_edge.ledger.usage_journal import UsageJournal
from skerry_edge.ledger.usage_report import dimensions_of, reading, since_of, totals
from skerry_edge.money.caps import Budget, Payer
from skerry_edge.money.spending import Spending, periods_at

DEFAULT_SINCE = "30d"
TURN_SECONDS = 5.0  # that a request waits for others' reports
FLUSH_SECONDS = 0.5  # that it waits for what was reported before it
READ_SECONDS = 2.0  # that a report may be read


class CapUse(Struct, frozen=True, kw_only=True):
    """A cap, and what is spent of it. US$."""

    payer: Payer
    id: str  # of the token, the login or the account
    name: str  # of the token
    period: Literal["day", "month"]  # UTC
    cap: float
    spent: float  # what running requests may cost included
    ends_at: int  # Unix seconds of the period's end


async def usage(request: EdgeRequest) -> Response:
    """Return sums of the account's requests since `since`, one for each value of the dimensions
    `by`; for an operator who names `accounts=all`, of every account's."""
    edge, tenant = request.edge, _tenant(request)
    journal = edge.stores.journal
    if journal is None:
        raise Unavailable("This edge keeps no usage journal.")
    try:
        by = dimensions_of(request.query_params.get("by", ""))
        since = since_of(request.query_params.get("since", DEFAULT_SINCE), edge.wall_clock())
    except ValueError as error:
        raise InvalidInput(f"Bad input: {error}") from None

    def read() -> bytes:
        with reading(journal.path, READ_SECONDS) as database:
            return encode(totals(database, by, since=since, tenant=tenant))

    async with _turn(journal):
        try:
            return JSONBytes(envelope(await asyncio.to_thread(read)))
        except (sqlite3.Error, OSError) as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise InvalidInput(
                    f"Bad input: since: the sums of so long a time take more than {READ_SECONDS:g}"
                    " seconds; ask for a shorter one",
                    param="since",
                ) from None
            raise Unavailable("The usage journal cannot be read now.") from error


async def caps(request: EdgeRequest) -> Response:
    """Return what is spent of the caps that bind the caller; with a role, of all caps of the
    account and its tokens."""
    edge = request.edge
    try:
        capped = _capped(edge, request.principal)
    except TokenStoreError as error:
        raise Unavailable("The API tokens cannot be read now.") from error
    spending, now = edge.admission.spending, edge.wall_clock()
    if not capped:
        return JSONBytes(envelope(encode([])))
    if spending is None:
        raise Unavailable("This edge counts no money.")
    return JSONBytes(envelope(encode(await _uses(spending, capped, now))))


def _tenant(request: EdgeRequest) -> str | None:
    """Return whose usage is requested; None: every account's. Raises PermissionDenied."""
    principal, accounts = request.principal, request.query_params.get("accounts", "own")
    if accounts == "own":
        return principal.account_id
    if accounts != "all":
        raise InvalidInput("Bad input: accounts: expected `own` or `all`", param="accounts")
    if principal.role != "operator":
        raise PermissionDenied("The usage of all accounts is for operators.")
    return None


def _capped(edge: Edge, principal: Principal) -> list[tuple[str, Budget]]:
    """Return whose caps a caller sees, each with its name. Raises TokenStoreError."""
    now, account = edge.wall_clock(), principal.account_id
    tokens = {each.id: each for each in edge.tokens.records() if each.account_id == account}
    found = {each.id: each for each in principal.budgets}
    if principal.role is not None:
        found |= {
            each.id: Budget(each.id, each.caps)
            for each in tokens.values()
            if each.id not in found and not each.caps.is_unlimited and not each.is_expired(now)
        }
    if (whole := edge.admission.quotas.budget(account)) is not None:
        found[account] = whole
    return [(tokens[id].name if id in tokens else "", each) for id, each in found.items()]


async def _uses(spending: Spending, capped: list[tuple[str, Budget]], now: float) -> list[CapUse]:
    """Return what is spent of each. Raises Unavailable."""
    spent_of = await asyncio.gather(*(spending.spent(budget.id) for _, budget in capped))
    return [
        CapUse(
            payer=budget.payer,
            id=budget.id,
            name=name,
            period=period.what,
            cap=cap,
            spent=spent,
            ends_at=round(now + period.seconds_left),
        )
        for (name, budget), spent_by_period in zip(capped, spent_of, strict=True)
        for period, cap, spent in zip(
            periods_at(now),
            (budget.caps.per_day, budget.caps.per_month),
            spent_by_period,
            strict=True,
        )
        if cap is not None
    ]


@asynccontextmanager
async def _turn(journal: UsageJournal) -> AsyncGenerator[None]:
    """Wait for a turn: one report is read at a time, and soon after what was reported before it is
    on disk.

    No thread waits for either. Raises `Overloaded`.
    """
    try:
        async with asyncio.timeout(TURN_SECONDS):
            await journal.reporting.acquire()
    except TimeoutError:
        raise Overloaded("Too many requests for usage now.", retry_after=TURN_SECONDS) from None
    try:
        with contextlib.suppress(TimeoutError):  # the disk is slow: the sums are of what it has
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.wrap_future(journal.written())
        yield
    finally:
        journal.reporting.release()
