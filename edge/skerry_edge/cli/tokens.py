"""`skerry tokens`: API tokens of this platform. A running edge follows every change at once."""

from __future__ import annotations

import argparse
import os
import time
from datetime import UTC, datetime

from skerry_edge.auth import ALL_SCOPES, TokenStore, TokenStoreError, new_account_id
from skerry_edge.cli.arguments import Commands, add_command
from skerry_edge.cli.output import complain, note, say
from skerry_edge.cli.state import Home, read_config


def register(commands: Commands) -> None:
    """Add `skerry tokens create|list|revoke`."""
    parser = commands.add_parser("tokens", help="create, list and revoke API tokens")
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
    add_command(
        actions,
        "list",
        list_tokens,
        help="list tokens, without their secrets",
        description="List the tokens that work now.",
        example="skerry tokens list",
    )
    revoke = add_command(
        actions,
        "revoke",
        revoke_token,
        help="make a token stop working at once",
        description="Revoke a token by the id that `skerry tokens list` shows.",
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
            now=int(time.time()),
        )
    except (TokenStoreError, ValueError) as error:
        return complain(f"{error}.")
    note(f"Token {record.id} of account {record.account_id}; it is not shown again:")
    say(token)
    return 0


def list_tokens(args: argparse.Namespace) -> int:
    try:
        records = TokenStore(Home.from_environ(os.environ).tokens).records()
    except TokenStoreError as error:
        return complain(f"{error}.")
    say(f"{'ID':16}  {'ACCOUNT':32}  {'CREATED':10}  {'SCOPES':14}  NAME")
    for each in records:
        created = datetime.fromtimestamp(each.created_at, UTC).strftime("%Y-%m-%d")
        say(f"{each.id}  {each.account_id}  {created}  {','.join(each.scopes):14}  {each.name}")
    return 0


def revoke_token(args: argparse.Namespace) -> int:
    given = str(args.id)
    token_id = given.split("_")[1] if given.startswith("skerry_") else given
    try:
        known = TokenStore(Home.from_environ(os.environ).tokens).revoke(token_id)
    except TokenStoreError as error:
        return complain(f"{error}.")
    if not known:
        return complain(f"There is no token {token_id}; `skerry tokens list` shows them.")
    say(f"Token {token_id} is revoked.")
    return 0


def _account(home: Home, given: str | None) -> str:
    """The account named, a new one, or the one that `skerry up` made."""
    if given == "new":
        return new_account_id()
    if given is not None:
        return given
    config = read_config(home)
    return config.account_id if config is not None else new_account_id()
