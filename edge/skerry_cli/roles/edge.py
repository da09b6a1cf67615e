"""`skerry edge`: one gateway as a process of its own, in front of the nodes in the registry."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skerry_cli.arguments import (
    Commands,
    add_command,
    add_console,
    add_residency,
    add_tls,
    http_url,
    is_half_tls,
    known_hosts,
    port,
    tls_of,
)
from skerry_cli.home.errors import CommandFailed, raised_as
from skerry_cli.home.keys import keep_private
from skerry_cli.home.machine import configure_threads
from skerry_cli.home.state import Home
from skerry_cli.logs import configure_logging
from skerry_cli.output import complain
from skerry_cli.roles.joining import (
    OrderedRestart,
    add_join,
    assigned,
    enrolled,
    given_options,
    host_towards,
    serve_joined,
)
from skerry_regions.address import Address
from skerry_regions.spec_types import DEFAULT_CONSOLE
from skerry_regions.zones import GLOBAL

if TYPE_CHECKING:
    from skerry_cli.composition.serve_edge import EdgeOptions
    from skerry_regions.registry import Registry

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8787
JOINED_PORT = 8792  # for other regions' edges, of a machine that joined
TOLD = {
    "id": None, "region": None, "residency": GLOBAL, "model": None, "topology": None,
}  # fmt: skip


def register(commands: Commands) -> None:
    edge = add_command(
        commands,
        "edge",
        start,
        help="run one edge: the HTTP API in front of nodes",
        description="Run one edge. `skerry up --topology` and `skerry control` start those of "
        "their own machine by themselves; with --join it is part of a platform elsewhere.",
        example="skerry edge --join https://control.example:8789 --token-file /etc/skerry/token\n"
        "  skerry edge --id edge-1 --region fra "
        "--model @cf/huggingfacetb/smollm2-135m-instruct",
    )
    edge.add_argument("--id", help="its name, unique among all edges")
    edge.add_argument("--region", help="where it stands (default: local)")
    add_residency(edge)
    edge.add_argument(
        "--model",
        action="append",
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
    edge.add_argument(
        "--known-host",
        type=known_hosts,
        default=frozenset[str](),
        metavar="NAME,…",
        help="answer to these names, --host and loopback's alone (default: to all)",
    )
    edge.add_argument(
        "--public-url",
        type=http_url,
        metavar="URL",
        help="what other edges send clients to, where host and port are not it",
    )
    edge.add_argument("--home", type=Path, help="tokens, models, registry (default: SKERRY_HOME)")
    edge.add_argument(
        "--placement",
        choices=("cost", "nearest", "round-robin"),
        default="cost",
        help="where requests go: by cost in seconds, or, to compare, by a plain rule",
    )
    add_console(edge)
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
    add_join(edge, decides="where the edge stands and what it offers, and shares its API tokens")
    edge.add_argument("--listener-fd", type=int, help=argparse.SUPPRESS)
    edge.add_argument("--lifeline-fd", type=int, help=argparse.SUPPRESS)
    edge.add_argument("--left-out", default="[]", help=argparse.SUPPRESS)  # JSON
    edge.add_argument("--placed", type=Path, help=argparse.SUPPRESS)  # JSON, followed


def start(args: argparse.Namespace) -> int:
    if is_half_tls(args):
        return complain("--tls-cert and --tls-key belong together")
    home = Home(args.home.absolute()) if args.home else Home.from_environ(os.environ)
    if args.join is not None:
        return _start_joined(args, home)
    if missing := [f"--{name}" for name in ("id", "model") if not getattr(args, name)]:
        return complain(f"give {', '.join(missing)}; or --join, on a machine of its own")
    _configure()
    from skerry_cli.home.shared_state import open_registry
    from skerry_regions.registry import RegistryUnavailable

    home = home.in_zone(args.residency)
    home.create()
    options = _options(
        args,
        id=args.id,
        region=args.region or "local",
        zone=args.residency,
        models=tuple(args.model),
        gateway=args.gateway,
        holds=args.hold,
        topology=args.topology,
    )
    with raised_as(CommandFailed, RegistryUnavailable):
        registry = open_registry(home, os.environ)
    return _run(options, home, registry, OrderedRestart())


def _start_joined(args: argparse.Namespace, home: Home) -> int:
    """Run as the control plane says, until it says otherwise; then restart."""
    if told := given_options(args, TOLD):
        return complain(f"{told} and --join exclude each other: the control plane says it")
    _configure()
    from skerry_cli.home.credentials import CredentialsFollower
    from skerry_cli.home.shared_state import chosen_state
    from skerry_regions.control.machines.messages import EdgeAssignment

    home.create()
    link = enrolled(args, home, "edge")
    assignment = assigned(link, EdgeAssignment)
    gateway = args.gateway or str(Address(host=host_towards(link.url), port=JOINED_PORT))
    home = home.in_zone(assignment.residency)
    home.create()
    topology = home.machine / "topology.yaml"
    keep_private(topology, assignment.topology.encode())
    options = _options(
        args,
        id=link.machine,
        region=assignment.region,
        zone=assignment.residency,
        models=assignment.models,
        gateway=gateway,
        holds=True,
        topology=topology,
    )

    def serve(registry: Registry, orders: OrderedRestart) -> int:
        has_state = chosen_state(home, os.environ) is not None
        with CredentialsFollower(link, home, has_state=has_state):
            return _run(options, home, registry, orders)

    return serve_joined(link, assignment.fingerprint, args.argv, serve)


def _configure() -> None:
    """Set the environment before libraries are imported."""
    configure_threads(1)
    configure_logging()


def _options(args: argparse.Namespace, **told: Any) -> EdgeOptions:
    """Return what this machine decides on, and what it is to be."""
    import msgspec

    from skerry_cli.composition.listening import Where
    from skerry_cli.composition.serve_edge import EdgeOptions
    from skerry_regions.models.problems import LeftOut

    return EdgeOptions(
        where=Where(host=args.host, port=args.port, tls=tls_of(args), descriptor=args.listener_fd),
        placement=args.placement,
        console=args.console or DEFAULT_CONSOLE,
        hosts=args.known_host,
        public_url=args.public_url or "",
        lifeline=args.lifeline_fd,
        advertise=args.advertise or "",
        placed=args.placed,
        left_out=msgspec.json.decode(args.left_out, type=tuple[LeftOut, ...]),
        **told,
    )


def _run(options: EdgeOptions, home: Home, registry: Registry, orders: OrderedRestart) -> int:
    from skerry_cli.composition.serve_edge import serve_edge
    from skerry_cli.composition.starter import run_to_the_end
    from skerry_cli.home.shared.settings import shared_settings
    from skerry_regions.drivers.kept_registry import KeptRegistry

    kept = KeptRegistry(registry, home.known_members)

    def serve() -> None:
        with shared_settings(home, os.environ, options.id, serves=True):
            serve_edge(options, home, kept, orders.started, orders.cancel)

    return run_to_the_end(serve)
