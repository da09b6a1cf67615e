"""`skerry tokens list`: the tokens that work now, what they may do, and what capped ones spent."""

from __future__ import annotations

import argparse
import asyncio
import os
from datetime import UTC, datetime

from skerry_cli.home.errors import CannotStart
from skerry_cli.home.shared.settings import opened_tokens
from skerry_cli.home.state import Home
from skerry_cli.output import complain, printable, say
from skerry_edge.gate.token_file import TokenRecord, TokenStoreError
from skerry_edge.money.caps import Caps


def list_tokens(args: argparse.Namespace) -> int:
    home = Home.from_environ(os.environ)
    try:
        with opened_tokens(home, os.environ, "skerry tokens list") as store:
            records = store.records()
        spent = _spent(home, records)
    except (TokenStoreError, CannotStart) as error:
        return complain(f"{error}.")
    say(
        f"{'ID':16}  {'ACCOUNT':32}  {'CREATED':10}  {'EXPIRES':10}  {'ROLE':9}  {'SCOPES':8}  "
        f"{'ZONE':8}  NAME"
    )
    for each in records:
        grant, expires = each.grant, "never" if each.expires_at is None else _day(each.expires_at)
        line = (
            f"{each.id}  {each.account_id}  {_day(each.created_at)}  {expires:10}  "
            f"{grant.role or '-':9}  {','.join(grant.scopes) or '-':8}  "
            f"{each.residency or 'any':8}  {each.name}"
        )
        say(printable(" ".join([line.rstrip(), *_bounds(each), *spent.get(each.id, ())])))
    return 0


def _day(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _bounds(record: TokenRecord) -> list[str]:
    """Return what else is to say of a token: `[child of ID]`, `[runs PATTERN]`."""
    told = [f"[child of {record.parent}]"] if record.parent is not None else []
    return told + ([f"[runs {', '.join(record.models)}]"] if record.models is not None else [])


def _spent(home: Home, records: list[TokenRecord]) -> dict[str, list[str]]:
    """Return for each capped token: `[US$ 0.12 of 5 this day]`."""
    capped = [each for each in records if not each.caps.is_unlimited]
    if not capped:
        return {}
    return asyncio.run(_read_spent(home, capped))


async def _read_spent(home: Home, capped: list[TokenRecord]) -> dict[str, list[str]]:
    from skerry_cli.composition.configured import open_spending
    from skerry_cli.home.shared_state import opened_state

    async with opened_state(home, os.environ, "skerry tokens list") as state:
        spending = open_spending(home, state)
        try:
            return {each.id: _told(each.caps, *await spending.spent(each.id)) for each in capped}
        finally:
            await spending.close()


def _told(caps: Caps, day: float, month: float) -> list[str]:
    told = (("day", day, caps.per_day), ("month", month, caps.per_month))
    return [
        f"[US$ {spent:.6g} of {cap:g} this {what}]" for what, spent, cap in told if cap is not None
    ]
