"""`skerry audit`: who changed what of the platform and its API tokens, and what was denied."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from typing import Any

import msgspec

from skerry_cli.arguments import Commands, add_command, count
from skerry_cli.home.platform_client import PlatformClient, PlatformError
from skerry_cli.home.state import Home
from skerry_cli.output import complain, note, printable, say
from skerry_cli.tables import table
from skerry_edge.gate.token_audit import newest_changes

MAX_ENTRIES = 500
LONGEST = 60  # characters of what changed, in a table
HEADERS = ("AT", "*ACTOR", "OUTCOME", "ACTION", "*WHAT", "*CHANGES")
WIDTH = 140


def register(commands: Commands) -> None:
    """Add the command."""
    audit = add_command(
        commands,
        "audit",
        show,
        help="show who changed what, and what was denied",
        description="List changes of the platform and of API tokens, oldest first, granted and "
        "denied ones: the control plane's log, and what was done to this home's tokens with "
        "`skerry tokens`.",
        example="skerry audit --limit 50\n  skerry audit --json | jq '.[] | select(.outcome == "
        '"denied")\'',
    )
    audit.add_argument(
        "--limit", type=count, default=20, metavar="N", help="entries (default: %(default)s)"
    )
    audit.add_argument("--json", action="store_true", help="print one JSON array")


def show(args: argparse.Namespace) -> int:
    limit = min(args.limit, MAX_ENTRIES)
    home = Home.from_environ(os.environ)
    try:
        found = [msgspec.to_builtins(each) for each in newest_changes(home.token_audit, limit)]
    except OSError as error:
        return complain(f"cannot read {home.token_audit}: {error.strerror}")
    try:
        client = PlatformClient.from_environ(home, os.environ)
        params = {"limit": str(limit), "newest": "1"}
        found += client.ask("GET", "/audit", params=params)["items"]
    except PlatformError as error:
        note(f"Only changes made with `skerry tokens`: {error}.")
    found = sorted(found, key=lambda each: each["at"])[-limit:]
    if args.json:
        say(msgspec.json.encode(found).decode())
    elif found:
        say(table(HEADERS, [_cells(each) for each in found], WIDTH))
    else:
        note("Nothing was changed yet.")
    return 0


def _cells(entry: dict[str, Any]) -> list[str]:
    at = datetime.fromtimestamp(entry["at"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    told = ", ".join(f"{name} {_told(value)}" for name, value in entry["changes"].items())
    what = f"{entry['kind']} {entry['id']}"
    changes = told if len(told) <= LONGEST else f"{told[: LONGEST - 1]}…"
    cells = [at, entry["actor"], entry["outcome"], entry["action"], what, changes]
    return [printable(cell) for cell in cells]


def _told(value: object) -> str:
    """Return a value as it is now: the control plane's log has [before, after]."""
    after = value[1] if isinstance(value, list) and len(value) == 2 else value
    return after if isinstance(after, str) else msgspec.json.encode(after).decode()
