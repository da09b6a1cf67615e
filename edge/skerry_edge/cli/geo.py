"""`skerry geo`: where clients are, and why they go where they go."""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path

from skerry_edge.cli.arguments import Commands, add_command
from skerry_edge.cli.output import complain


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


def start_explain(args: argparse.Namespace) -> int:
    from skerry_edge.cli.geo_explain import explain
    from skerry_edge.cli.parts import CannotStart, read_topology

    try:
        explain(read_topology(args.topology), ipaddress.ip_address(args.address))
    except (ValueError, CannotStart) as error:
        return complain(str(error))
    return 0
