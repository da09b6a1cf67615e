"""`skerry history`: who changed what."""

from __future__ import annotations

import argparse
import contextlib
import os
from datetime import datetime
from typing import Any

from skerry_cli.home.platform_client import PlatformClient
from skerry_cli.home.state import Home
from skerry_cli.output import printable, say
from skerry_cli.resources.kinds import KINDS, MARKS
from skerry_cli.tables import table


def show_history(args: argparse.Namespace, client: PlatformClient) -> int:
    import msgspec

    params = {"limit": str(min(args.limit, 500))}
    if args.kind is not None:
        params["kind"] = KINDS[args.kind]
    if args.id is not None:
        params["id"] = args.id
    items: list[dict[str, Any]] = client.ask("GET", "/history", params=params)["items"]
    if args.json:
        say(msgspec.json.encode(items).decode())
        return 0
    names = _token_names(client)
    rows = [
        [
            str(each["revision"]),
            datetime.fromtimestamp(each["at"]).strftime("%Y-%m-%d %H:%M:%S"),
            printable(names.get(each["actor"]) or each["actor"]),
            _summary(each["changes"]),
        ]
        for each in items
    ]
    say(table((">REVISION", "WHEN", "*WHO", "*WHAT"), rows))
    return 0


def _token_names(client: PlatformClient) -> dict[str, str]:
    """Return what API tokens are called, by id: those of this home, and of the control plane."""
    from skerry_edge.gate.token_file import TokenStoreError
    from skerry_edge.gate.tokens import TokenStore

    names: dict[str, str] = {}
    with contextlib.suppress(TokenStoreError):
        records = TokenStore(Home.from_environ(os.environ).tokens).records()
        names = {each.id: each.name for each in records}
    return names | {each["id"]: each["name"] for each in client.all("/api_tokens")}


def _summary(changes: list[dict[str, Any]]) -> str:
    """Return what one revision did, in as few words as name it."""
    if len(changes) <= 2:
        return ", ".join(f"{MARKS.get(each['action'], '~')} {each['id']}" for each in changes)
    actions = [each["action"] for each in changes]
    return ", ".join(f"{actions.count(each)} {each}d" for each in dict.fromkeys(actions))
