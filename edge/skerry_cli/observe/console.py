"""`skerry console`: an address that opens the console, logged in."""

from __future__ import annotations

import argparse
import os

from skerry_cli.arguments import Commands, add_command
from skerry_cli.home.instance import running
from skerry_cli.home.state import Home, read_config
from skerry_cli.observe.status import NOT_RUNNING
from skerry_cli.output import complain, say


def register(commands: Commands) -> None:
    console = add_command(
        commands,
        "console",
        show,
        help="print an address that opens the console in a browser",
        description="Print where a browser finds the console of what `skerry up` runs. The code "
        "in it logs in whoever opens it first, as the holder of this home's token, within a "
        "minute.",
        example="skerry console",
    )
    whose = console.add_mutually_exclusive_group()
    whose.add_argument("--edge", metavar="ID", help="which edge's (default: the first)")
    whose.add_argument(
        "--control", action="store_true", help="the control plane's: what is wanted, and the audit"
    )


def show(args: argparse.Namespace) -> int:
    from msgspec.structs import replace

    from skerry_cli.home.console_address import console_address, control_address
    from skerry_cli.home.control import ask_status

    home = Home.from_environ(os.environ)
    instance, config = running(home), read_config(home)
    if args.control:
        if config is None or not config.control_url:
            return complain(NOT_RUNNING)
        say(control_address(home, config))
        return 0
    if instance is None or not instance.ready or config is None:
        return complain(NOT_RUNNING)
    edges = {edge.id: edge.url for edge in ask_status(instance.control).edges}
    edge = args.edge or next(iter(edges), "")
    if edge not in edges:
        return complain(f"there is no edge {edge!r}: {', '.join(edges) or 'none'} run here")
    address = console_address(home, replace(config, url=edges[edge]), edge, "on")
    say(str(address))
    return 0
