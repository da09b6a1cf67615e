"""`skerry edge`: one gateway as a process of its own, in front of the nodes in the registry."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from skerry_edge.cli.arguments import (
    Commands,
    add_command,
    add_residency,
    add_tls,
    is_half_tls,
    port,
)
from skerry_edge.cli.logs import configure_logging
from skerry_edge.cli.machine import configure_threads
from skerry_edge.cli.output import complain, note
from skerry_edge.cli.state import Home

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8787


def register(commands: Commands) -> None:
    edge = add_command(
        commands,
        "edge",
        start,
        help="run one edge: the HTTP API in front of nodes",
        description="Run one edge. `skerry up --topology` starts edges by itself.",
        example="skerry edge --id edge-1 --region fra "
        "--model @cf/huggingfacetb/smollm2-135m-instruct",
    )
    edge.add_argument("--id", required=True, help="its name, unique among all edges")
    edge.add_argument("--region", default="local", help="where it stands (default: %(default)s)")
    add_residency(edge)
    edge.add_argument(
        "--model",
        action="append",
        required=True,
        metavar="ID",
        help="model to offer, installed here; may be repeated",
    )
    edge.add_argument("--host", default=DEFAULT_HOST, help="default: %(default)s")
    edge.add_argument(
        "--port", type=port, default=DEFAULT_PORT, help="0 takes a free one (default: %(default)s)"
    )
    edge.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="YAML whose links say what to assume of paths until they are measured",
    )
    add_tls(edge, note="read again when it changes")
    edge.add_argument("--home", type=Path, help="tokens, models, registry (default: SKERRY_HOME)")
    edge.add_argument(
        "--placement",
        choices=("cost", "nearest", "round-robin"),
        default="cost",
        help="where requests go: by cost in seconds, or, to compare, by a plain rule",
    )
    edge.add_argument(
        "--gateway",
        metavar="ADDRESS",
        default="",
        help="take streams of other regions' edges here: unix:/path or tcp:host:port",
    )
    edge.add_argument(
        "--hold",
        action="store_true",
        help="requests for a model without a node wait for one, until their deadline",
    )
    edge.add_argument("--listener-fd", type=int, help=argparse.SUPPRESS)
    edge.add_argument("--lifeline-fd", type=int, help=argparse.SUPPRESS)


def start(args: argparse.Namespace) -> int:
    if is_half_tls(args):
        return complain("--tls-cert and --tls-key belong together")
    configure_threads(1)
    configure_logging()
    from skerry_edge.cli.parts import CannotStart
    from skerry_edge.cli.serve_edge import EdgeOptions, serve_edge
    from skerry_regions.registry import RegistryUnavailable
    from skerry_regions.startup import Interrupted

    home = Home(args.home.absolute()) if args.home else Home.from_environ(os.environ)
    home = home.in_zone(args.residency)
    home.create()
    options = EdgeOptions(
        id=args.id,
        region=args.region,
        tls=(args.tls_cert, args.tls_key) if args.tls_cert else None,
        zone=args.residency,
        models=tuple(args.model),
        host=args.host,
        port=args.port,
        gateway=args.gateway,
        placement=args.placement,
        holds=args.hold,
        listener=args.listener_fd,
        lifeline=args.lifeline_fd,
        topology=args.topology,
    )
    try:
        serve_edge(options, home)
    except (CannotStart, RegistryUnavailable) as error:
        return complain(str(error))
    except Interrupted:
        note("Stopped before it was ready.")
        return 130
    note("Stopped.")
    return 0
