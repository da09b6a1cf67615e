"""`skerry models list` where the client alone is installed: what its platform serves."""

from __future__ import annotations

import argparse
from typing import Any

from skerry_cli.arguments import Commands, add_command
from skerry_cli.output import say
from skerry_cli.tables import table


def register(commands: Commands) -> None:
    """Add `skerry models list`."""
    parser = commands.add_parser("models", help="list the models that the platform serves")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = add_command(
        actions,
        "list",
        list_served,
        help="list them",
        description="List the models that the platform serves, under each of their names.",
        example="skerry models list --json",
    )
    listing.add_argument("--json", action="store_true", help="answer in JSON")


def list_served(args: argparse.Namespace) -> int:
    """Print the models that are served, by name."""
    from skerry import AI

    with AI() as ai:
        models = ai.models()
    if args.json:
        import msgspec

        say(msgspec.json.format(msgspec.json.encode(models)).decode())
        return 0
    rows = [[each.name, each.task["name"], _context(each.properties)] for each in models]
    say(table(["*MODEL", "TASK", ">CONTEXT"], rows))
    return 0


def _context(properties: list[Any]) -> str:
    found = (each["value"] for each in properties if each["property_id"] == "context_window")
    return str(next(found, "-"))
