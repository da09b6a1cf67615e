"""`skerry dns`: clients find the nearest healthy region by name."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

from skerry_cli.arguments import Commands, add_command, count_or_zero, port
from skerry_cli.home.state import Home
from skerry_cli.logs import configure_logging
from skerry_cli.output import complain

KEY_STEPS = ("show", "roll", "confirm", "finish")


def register(commands: Commands) -> None:
    serve = add_command(
        commands,
        "dns",
        start,
        help="run the authoritative DNS server of a zone",
        description="Answer for the zone in a topology's `dns` section, or for a DNS zone of the "
        "control plane: names in it lead each client to the nearest region that is up.",
        example="skerry dns --topology examples/three-regions.yaml --port 5353\n"
        "  dig @127.0.0.1 -p 5353 ai.example.test A +subnet=203.0.113.0/24",
    )
    serve.add_argument(
        "action",
        nargs="?",
        choices=("serve", "keygen", "transfer-key", "keys"),
        default="serve",
        help="keygen: draw the key that signs the zone from then on, and show its DS record; "
        "transfer-key: draw the key by which secondaries get the zone; "
        "keys: go from one key to the next",
    )
    serve.add_argument(
        "step",
        nargs="?",
        choices=KEY_STEPS,
        help="of `keys`; roll: draw the next key; confirm: the parent has its DS record; finish: "
        "forget the old one",
    )
    zone = serve.add_mutually_exclusive_group(required=True)
    zone.add_argument("--topology", type=Path, metavar="FILE")
    zone.add_argument("--zone", metavar="NAME", help="a DNS zone of the control plane")
    serve.add_argument(
        "--control", metavar="URL", help="the control plane (default: that of this home)"
    )
    serve.add_argument("--host", help="address to listen on (default: as the zone says)")
    serve.add_argument("--port", type=port, help="UDP and TCP (default: as the zone says)")
    serve.add_argument(
        "--workers",
        type=count_or_zero,
        metavar="N",
        help="that answer over UDP, beside the event loop (default: one per core; 0: none)",
    )
    serve.add_argument(
        "--metrics",
        metavar="ADDRESS",
        help="serve metrics there, for Prometheus: unix:, or tcp: on loopback",
    )
    serve.add_argument("--lifeline-fd", type=int, help=argparse.SUPPRESS)
    serve.add_argument("--id", metavar="NAME", help="the NSID that is sent (default: host name)")


def start(args: argparse.Namespace) -> int:
    if args.step is not None and args.action != "keys":
        return complain(f"{args.action} has no step {args.step!r}")
    configure_logging()
    try:
        importlib.import_module("dns")
    except ModuleNotFoundError:
        return complain("`skerry dns` needs `pip install '.[dns]'` in Skerry's repository")
    home = Home.from_environ(os.environ)
    home.create()
    _act(args, home)
    return 0


def _act(args: argparse.Namespace, home: Home) -> None:
    """Raises `CannotStart` or `StateError`."""
    if args.action == "serve":
        from skerry_cli.composition.dns.serve import DnsOptions, serve_dns

        options = DnsOptions(
            topology=args.topology,
            zone=args.zone or "",
            control=args.control or "",
            host=args.host,
            port=args.port,
            server_id=args.id,
            workers=args.workers,
            metrics=args.metrics or "",
            lifeline=args.lifeline_fd,
        )
        return serve_dns(options, home)
    zone = args.zone or _zone_of(args.topology)
    if args.action == "keygen":
        from skerry_cli.home.dns.signing import keygen

        return keygen(zone, home)
    if args.action == "transfer-key":
        from skerry_cli.home.dns.transfers import transfer_keygen

        return transfer_keygen(zone, home)
    from skerry_cli.roles.dns_keys import keys

    keys(args.step or "show", zone, home)


def _zone_of(topology: Path) -> str:
    """Raises `CannotStart`."""
    from skerry_cli.composition.dns.zone_contents import spec_of
    from skerry_cli.home.parts import read_topology

    return spec_of(read_topology(topology)).zone
