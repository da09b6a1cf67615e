"""`skerry dns` and `skerry geo`: clients find the nearest healthy region by name."""

from __future__ import annotations

import argparse
import ipaddress
import os
from collections.abc import Callable
from pathlib import Path

from skerry_edge.cli.arguments import Commands, add_command, port
from skerry_edge.cli.logs import configure_logging
from skerry_edge.cli.output import complain
from skerry_edge.cli.state import Home


def register(commands: Commands) -> None:
    serve = add_command(
        commands,
        "dns",
        start,
        help="run the authoritative DNS server of a topology's zone",
        description="Answer for the zone in a topology's `dns` section: the names in it lead each "
        "client to the nearest region that is up.",
        example="skerry dns --topology examples/three-regions.yaml --port 5353\n"
        "  dig @127.0.0.1 -p 5353 ai.example.test A +subnet=203.0.113.0/24",
    )
    serve.add_argument(
        "action",
        nargs="?",
        choices=("serve", "keygen", "transfer-key"),
        default="serve",
        help="keygen: draw the key that signs the zone from then on, and show its DS record; "
        "transfer-key: draw the key by which secondaries get the zone",
    )
    serve.add_argument("--topology", type=Path, required=True, metavar="FILE")
    serve.add_argument("--host", help="address to listen on (default: as the file says)")
    serve.add_argument("--port", type=port, help="UDP and TCP (default: as the file says)")
    serve.add_argument("--id", metavar="NAME", help="told to who asks (NSID; default: host name)")
    parser = commands.add_parser("geo", help="where clients are, and why they go where they go")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    explain = add_command(
        actions,
        "explain",
        explain_address,
        help="which regions an address is sent to, and why",
        description="Show what is known of a client's address and the order of regions for it.",
        example="skerry geo explain 203.0.113.7 --topology examples/three-regions.yaml",
    )
    explain.add_argument("address", help="IPv4 or IPv6 address of a client")
    explain.add_argument("--topology", type=Path, required=True, metavar="FILE")


def start(args: argparse.Namespace) -> int:
    configure_logging()
    from skerry_edge.cli.dns_signing import keygen
    from skerry_edge.cli.dns_transfers import transfer_keygen
    from skerry_edge.cli.serve_dns import serve_dns

    home = Home.from_environ(os.environ)
    home.create()
    if args.action == "keygen":
        return _told(args.topology, lambda: keygen(args.topology, home))
    if args.action == "transfer-key":
        return _told(args.topology, lambda: transfer_keygen(args.topology, home))
    return _told(
        args.topology, lambda: serve_dns(args.topology, home, args.host, args.port, args.id)
    )


def explain_address(args: argparse.Namespace) -> int:
    from skerry_edge.cli.serve_dns import explain

    try:
        address = ipaddress.ip_address(args.address)
    except ValueError as error:
        return complain(str(error))
    return _told(args.topology, lambda: explain(args.topology, address))


def _told(topology: Path, action: Callable[[], None]) -> int:
    """Run `action` and turn what goes wrong into a sentence; the exit status."""
    from skerry_edge.cli.parts import CannotStart

    try:
        action()
    except CannotStart as error:
        return complain(str(error))
    return 0
