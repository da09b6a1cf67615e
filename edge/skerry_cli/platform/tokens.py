"""`skerry tokens`: API tokens of this platform. A running edge follows every change at once."""

from __future__ import annotations

import argparse
import os
import pwd
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from skerry_cli.arguments import Commands, add_command, days_or_hours, dollars_or_none
from skerry_cli.home.errors import CannotStart, CommandFailed
from skerry_cli.home.shared.settings import opened_tokens
from skerry_cli.home.state import Home, known_config
from skerry_cli.output import complain, note, say
from skerry_cli.platform.token_table import list_tokens
from skerry_edge.gate.token_audit import TokenAudit
from skerry_edge.gate.token_file import (
    TokenStoreError,
    digest_of,
    new_account_id,
    new_secret,
    token_text,
)
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.money.caps import Caps
from skerry_regions.access import ROLES, SCOPES, AccessRole, role_of_admin

NAME = "skerry tokens"  # what servers list the connection as
AUDITED = ("name", "account", "role", "scope", "model", "residency", "per_day", "per_month")
TOKEN_ID = re.compile(r"[0-9a-f]{16}")


def register(commands: Commands) -> None:
    """Add `skerry tokens create|list|cap|rotate|revoke`."""
    parser = commands.add_parser("tokens", help="create, list, cap, rotate and revoke API tokens")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    create = add_command(
        actions,
        "create",
        create_token,
        help="make a token; it is shown once",
        description="Make an API token. Only its hash is stored, so it is shown this once. Without "
        "--role and --scope it runs models and reads lists, and the control plane refuses it.",
        example="skerry tokens create --name laptop --expires 90d --per-day 5\n"
        "  skerry tokens create --account new --role developer --name acme",
    )
    create.add_argument("--name", default="", help="what the token is for")
    create.add_argument(
        "--account",
        metavar="ID",
        help="32 hex digits, or `new`; the parent's account, or the platform's own, if not given",
    )
    create.add_argument(
        "--role",
        choices=ROLES,
        help="what it may do at the control plane: read (viewer), make tokens of its own account "
        "(developer), or change the platform (operator, in its own account only)",
    )
    create.add_argument(
        "--scope",
        action="append",
        choices=(*SCOPES, "admin"),
        help="what it may do at edges; may be repeated; run and read if not given, of a viewer "
        "read (steer: read what edges report to DNS servers; metrics: read /metrics; `admin` is "
        "taken as a role, until version 0.3)",
    )
    create.add_argument(
        "--model",
        action="append",
        metavar="ID",
        help="that it may run, or `@cf/meta/*`; may be repeated; every model if not given",
    )
    create.add_argument(
        "--expires",
        type=days_or_hours,
        metavar="TIME",
        help="after which it stops working, such as 90d or 12h (default: never)",
    )
    create.add_argument(
        "--parent",
        metavar="ID",
        help="token that it is made with: what it spends counts against the parent's caps, too, "
        "and it works no longer than the parent",
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
    rotate = add_command(
        actions,
        "rotate",
        rotate_token,
        help="give a token another secret; it is shown once",
        description="Give a token another secret. Its id, its bounds and what was made with it "
        "stay. The secret of before stops working at once, or after the time of --grace.",
        example="skerry tokens rotate 0123456789abcdef --grace 1h",
    )
    rotate.add_argument("id", help="the token's id, or the token itself")
    rotate.add_argument(
        "--grace",
        type=days_or_hours,
        default=0,
        metavar="TIME",
        help="for which the secret of before works beside the new one, such as 1h",
    )
    revoke = add_command(
        actions,
        "revoke",
        revoke_token,
        help="make a token stop working at once",
        description="Revoke a token by the id that `skerry tokens list` shows, and all that were "
        "made with it. What they ask from now on is refused; answers that are on their way end "
        "within a second or two.",
        example="skerry tokens revoke 0123456789abcdef",
    )
    revoke.add_argument("id", help="the token's id, or the token itself")


def create_token(args: argparse.Namespace) -> int:
    home = Home.from_environ(os.environ)
    home.create()
    now = int(time.time())
    try:
        with opened_tokens(home, os.environ, NAME) as store:
            parent = None if args.parent is None else _id_of(args.parent)
            account_id = _account(home, store, args.account, parent)
            role, scopes = _role_and_scopes(home, args, account_id)
            token, record = store.create(
                account_id=account_id,
                name=args.name,
                role=role,
                scopes=scopes,
                residency=args.residency,
                models=tuple(args.model) if args.model else None,
                caps=Caps(per_day=args.per_day, per_month=args.per_month),
                expires_at=None if args.expires is None else now + args.expires,
                parent=parent,
                now=now,
            )
    except (TokenStoreError, CannotStart, ValueError) as error:
        asked = {name: getattr(args, name) for name in AUDITED}
        _audit(home, "create", _id_of(args.parent or ""), asked, denied=str(error))
        return complain(f"{error}.")
    made = {name: it for name, it in msgspec.to_builtins(record).items() if "digest" not in name}
    _audit(home, "create", record.id, made)
    note(f"Token {record.id} of account {record.account_id}; it is not shown again:")
    say(token)
    return 0


def _role_and_scopes(
    home: Home, args: argparse.Namespace, account_id: str
) -> tuple[AccessRole | None, tuple[Any, ...] | None]:
    """Return what is requested, with `admin` taken as a role. Raises ValueError."""
    role = args.role
    asked: tuple[Any, ...] = tuple(args.scope or ())
    platform = known_config(home).account_id
    if "admin" in asked:
        role = role or role_of_admin(account_id, platform)
        note(f"--scope admin is taken as --role {role}: say so, it is refused from version 0.3 on.")
    if role == "operator" and account_id != platform:
        raise ValueError("operators are of the platform's own account, which `skerry up` makes")
    scopes = tuple(each for each in asked if each != "admin")
    return role, scopes if asked else None


def cap_token(args: argparse.Namespace) -> int:
    caps = Caps(per_day=args.per_day, per_month=args.per_month)
    token_id, home = _id_of(args.id), Home.from_environ(os.environ)
    _change(home, "update", token_id, lambda store: store.set_caps(token_id, caps))
    _audit(home, "update", token_id, {"per_day": caps.per_day, "per_month": caps.per_month})
    limits = [
        f"US$ {cap:g} per {period}"
        for period, cap in (("day", caps.per_day), ("month", caps.per_month))
        if cap is not None
    ]
    say(f"Token {token_id} may spend {' and '.join(limits) or 'without a cap'}.")
    return 0


def rotate_token(args: argparse.Namespace) -> int:
    token_id, secret, home = _id_of(args.id), new_secret(), Home.from_environ(os.environ)
    digest, grace = digest_of(secret), args.grace
    _change(
        home, "rotate", token_id, lambda store: store.rotate(token_id, digest, grace_seconds=grace)
    )
    _audit(home, "rotate", token_id, {"grace_seconds": args.grace})
    until = f"in {args.grace} s" if args.grace else "now"
    note(f"Token {token_id}, whose former secret ends {until}; the new one is not shown again:")
    say(token_text(token_id, secret))
    return 0


def revoke_token(args: argparse.Namespace) -> int:
    token_id, home = _id_of(args.id), Home.from_environ(os.environ)
    number = _change(home, "delete", token_id, lambda store: store.revoke(token_id))
    _audit(home, "delete", token_id, {"children": number - 1})
    others = f", with {number - 1} that were made with it" if number > 1 else ""
    say(f"Token {token_id} is revoked{others}.")
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
    """Return the id of a token that is given by its id, or whole."""
    return given.split("_")[1] if given.startswith("skerry_") else given


def _audit(home: Home, action: str, id: str, changes: dict[str, Any], *, denied: str = "") -> None:
    """Note a change in the home's audit log. One that cannot be written undoes no change.

    What was given for an id, and is none, may be a secret: it is left out.
    """
    id = id if TOKEN_ID.fullmatch(id) else ""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # of a container, say
        user = str(os.getuid())
    try:
        TokenAudit(home.token_audit, f"user:{user}").note(action, id, changes, denied=denied)
    except OSError as error:
        note(f"{home.token_audit} cannot be written ({error.strerror}): this is not in it.")


def _change(home: Home, action: str, token_id: str, change: Callable[[TokenStore], int]) -> int:
    """Change a token; return to how many that was done. Raises CommandFailed for none such."""
    try:
        with opened_tokens(home, os.environ, NAME) as store:
            number = change(store)
    except (TokenStoreError, CannotStart) as error:
        raise CommandFailed(f"{error}.") from None
    if not number:
        _audit(home, action, token_id, {}, denied="there is no such token")
        raise CommandFailed(f"There is no token {token_id}; `skerry tokens list` shows them.")
    return number


def _account(home: Home, store: TokenStore, given: str | None, parent: str | None) -> str:
    """Return the account named, a new one, the parent's, or the one that `skerry up` made."""
    if given == "new":
        return new_account_id()
    if given is not None:
        return given
    if parent is not None and (maker := store.principal(parent)) is not None:
        return maker.account_id
    return known_config(home).account_id or new_account_id()
