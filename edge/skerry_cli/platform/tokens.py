"""`skerry tokens`: API tokens of this platform. A running edge follows every change at once."""

from __future__ import annotations

import argparse
import os
import time
from datetime import UTC, datetime

from skerry.errors import Unavailable
from skerry_cli.arguments import Commands, add_command, dollars_or_none
from skerry_cli.home.state import Home, read_config
from skerry_cli.output import complain, note, say
from skerry_edge.gate.auth import (
    ALL_SCOPES,
    Caps,
    TokenRecord,
    TokenStore,
    TokenStoreError,
    new_account_id,
)


def register(commands: Commands) -> None:
    """Add `skerry tokens create|list|cap|revoke`."""
    parser = commands.add_parser("tokens", help="create, list, cap and revoke API tokens")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    create = add_command(
        actions,
        "create",
        create_token,
        help="make a token; it is shown once",
        description="Make an API token. Only its hash is stored, so it is shown this once.",
        example="skerry tokens create --name laptop --scope run --scope read",
    )
    create.add_argument("--name", default="", help="what the token is for")
    create.add_argument(
        "--account",
        metavar="ID",
        help="32 hex digits, or `new`; the platform's own account if not given",
    )
    create.add_argument(
        "--scope",
        action="append",
        choices=ALL_SCOPES,
        help="what the token may do; may be repeated; everything if not given",
    )
    _add_caps(create)
    create.add_argument(
        "--residency",
        metavar="ZONE",
        help="zone that its requests never leave, such as eu (default: anywhere)",
    )
    add_command(
        actions,
        "list",
        list_tokens,
        help="list tokens, without their secrets",
        description="List the tokens that work now, and what capped ones have spent.",
        example="skerry tokens list",
    )
    cap = add_command(
        actions,
        "cap",
        cap_token,
        help="change what a token may spend",
        description="Change what a token may spend, by the catalog's prices, in each UTC day and "
        "month. A cap that is not named is lifted. What it spent while it had no cap does not "
        "count.",
        example="skerry tokens cap 0123456789abcdef --per-day 5 --per-month 100",
    )
    cap.add_argument("id", help="the token's id, or the token itself")
    _add_caps(cap)
    revoke = add_command(
        actions,
        "revoke",
        revoke_token,
        help="make a token stop working at once",
        description="Revoke a token by the id that `skerry tokens list` shows. What it asks from "
        "now on is refused; answers that are on their way end within a second or two.",
        example="skerry tokens revoke 0123456789abcdef",
    )
    revoke.add_argument("id", help="the token's id, or the token itself")


def create_token(args: argparse.Namespace) -> int:
    home = Home.from_environ(os.environ)
    home.create()
    try:
        token, record = TokenStore(home.tokens).create(
            account_id=_account(home, args.account),
            name=args.name,
            scopes=tuple(args.scope or ALL_SCOPES),
            residency=args.residency,
            caps=Caps(per_day=args.per_day, per_month=args.per_month),
            now=int(time.time()),
        )
    except (TokenStoreError, ValueError) as error:
        return complain(f"{error}.")
    note(f"Token {record.id} of account {record.account_id}; it is not shown again:")
    say(token)
    return 0


def list_tokens(args: argparse.Namespace) -> int:
    home = Home.from_environ(os.environ)
    try:
        records = TokenStore(home.tokens).records()
        spent = _spent(home, records)
    except TokenStoreError as error:
        return complain(f"{error}.")
    except Unavailable as error:
        return complain(error.message)
    say(f"{'ID':16}  {'ACCOUNT':32}  {'CREATED':10}  {'SCOPES':14}  {'ZONE':8}  NAME")
    for each in records:
        created = datetime.fromtimestamp(each.created_at, UTC).strftime("%Y-%m-%d")
        scopes, zone = ",".join(each.scopes), each.residency or "any"
        line = f"{each.id}  {each.account_id}  {created}  {scopes:14}  {zone:8}  {each.name}"
        say(" ".join([line.rstrip(), *spent.get(each.id, ())]))
    return 0


def _spent(home: Home, records: list[TokenRecord]) -> dict[str, list[str]]:
    """Of each capped token: `[US$ 0.12 of 5 this day]`."""
    capped = [each for each in records if not each.caps.is_unlimited]
    if not capped:
        return {}
    from skerry_edge.gate.spending import Spending

    spending = Spending(home.spending)
    try:
        return {each.id: _told(each.caps, *spending.spent(each.id)) for each in capped}
    finally:
        spending.close()


def _told(caps: Caps, day: float, month: float) -> list[str]:
    told = (("day", day, caps.per_day), ("month", month, caps.per_month))
    return [
        f"[US$ {spent:.6g} of {cap:g} this {what}]" for what, spent, cap in told if cap is not None
    ]


def cap_token(args: argparse.Namespace) -> int:
    caps = Caps(per_day=args.per_day, per_month=args.per_month)
    token_id = _id_of(args.id)
    try:
        known = TokenStore(Home.from_environ(os.environ).tokens).set_caps(token_id, caps)
    except TokenStoreError as error:
        return complain(f"{error}.")
    if not known:
        return _unknown(token_id)
    limits = [
        f"US$ {cap:g} per {period}"
        for period, cap in (("day", caps.per_day), ("month", caps.per_month))
        if cap is not None
    ]
    say(f"Token {token_id} may spend {' and '.join(limits) or 'without a cap'}.")
    return 0


def revoke_token(args: argparse.Namespace) -> int:
    token_id = _id_of(args.id)
    try:
        known = TokenStore(Home.from_environ(os.environ).tokens).revoke(token_id)
    except TokenStoreError as error:
        return complain(f"{error}.")
    if not known:
        return _unknown(token_id)
    say(f"Token {token_id} is revoked.")
    return 0


def _add_caps(parser: argparse.ArgumentParser) -> None:
    for period in ("day", "month"):
        parser.add_argument(
            f"--per-{period}",
            type=dollars_or_none,
            metavar="US$",
            help=f"what it may spend in a UTC {period}; none, the default, for no cap",
        )


def _id_of(given: str) -> str:
    """The id of a token that is given by its id, or whole."""
    return given.split("_")[1] if given.startswith("skerry_") else given


def _unknown(token_id: str) -> int:
    return complain(f"There is no token {token_id}; `skerry tokens list` shows them.")


def _account(home: Home, given: str | None) -> str:
    """The account named, a new one, or the one that `skerry up` made."""
    if given == "new":
        return new_account_id()
    if given is not None:
        return given
    config = read_config(home)
    return config.account_id if config is not None else new_account_id()
