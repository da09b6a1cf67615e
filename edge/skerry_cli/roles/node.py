"""`skerry node`: one node as a process of its own."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skerry.runners import RUNNERS
from skerry_cli.arguments import (
    Commands,
    add_command,
    add_engine,
    add_forms,
    add_residency,
    byte_size_or_none,
    count,
    positive_seconds,
)
from skerry_cli.home.errors import CommandFailed, raised_as
from skerry_cli.home.keys import link_credentials
from skerry_cli.home.machine import configure_threads, default_threads
from skerry_cli.home.memory import BLOCK_TOKENS, DEFAULT_FILE_TIER, DEFAULT_KV_TOKENS
from skerry_cli.home.state import Home
from skerry_cli.logs import configure_logging
from skerry_cli.output import complain
from skerry_cli.report import Lines
from skerry_cli.roles.joining import (
    OrderedRestart,
    add_join,
    assigned,
    enrolled,
    given_options,
    host_towards,
    install,
    serve_joined,
)
from skerry_regions.address import Address, AddressError
from skerry_regions.zones import GLOBAL

if TYPE_CHECKING:
    from skerry_regions.control.planning.launcher import NodeSettings
    from skerry_regions.node.process import NodeOptions
    from skerry_regions.registry import Registry

DRAIN_SECONDS = 30.0
DEFAULT_KV_BLOCKS = DEFAULT_KV_TOKENS // BLOCK_TOKENS
JOINED_PORT = 8790  # for edges, and the next for KV, of a machine that joined
TOLD = {
    "id": None, "role": None, "region": None, "residency": GLOBAL, "model": None, "runner": None,
    "warm_up": None,
}  # fmt: skip


def register(commands: Commands) -> None:
    node = add_command(
        commands,
        "node",
        start,
        help="run one node: a model that edges send their streams to",
        description="Run one node. `skerry up --topology` and `skerry control` start those of "
        "their own machine by themselves; with --join it is part of a platform elsewhere.",
        example="skerry node --join https://control.example:8789 --token-file /etc/skerry/token\n"
        "  skerry node --id decode-1 --role decode --region fra "
        "--model @cf/huggingfacetb/smollm2-135m-instruct --address unix:/run/decode-1.sock",
    )
    node.add_argument("--id", help="its name, unique among all nodes")
    node.add_argument("--role", choices=("prefill", "decode", "hybrid"), help="default: hybrid")
    node.add_argument("--region", help="where it stands (default: local)")
    add_residency(node)
    node.add_argument("--model", metavar="ID", help="id or alias, installed here")
    node.add_argument(
        "--runner",
        choices=tuple(RUNNERS),
        help="what computes (default: numba)",
    )
    node.add_argument("--threads", type=count, metavar="N", help="cores (default: all, at most 16)")
    node.add_argument(
        "--kv-blocks",
        type=count,
        metavar="N",
        help=f"KV cache, in blocks of 64 tokens (default: {DEFAULT_KV_BLOCKS}; on a GPU as many as "
        "its memory has room for)",
    )
    node.add_argument(
        "--file-tier",
        type=byte_size_or_none,
        metavar="SIZE",
        help="disk for KV that memory has no room for; none switches it off (default: "
        f"{DEFAULT_FILE_TIER})",
    )
    add_engine(node)
    add_forms(node)
    node.add_argument(
        "--address",
        metavar="ADDRESS",
        help="for edges: unix:/path or tcp:host:port (port 0 takes a free one)",
    )
    node.add_argument(
        "--transfer",
        metavar="ADDRESS",
        help="for KV from other nodes (default: like --address, beside it)",
    )
    node.add_argument(
        "--control",
        metavar="ADDRESS",
        help="HTTP API for operators, unix: or loopback (default: a unix socket in the home)",
    )
    node.add_argument("--home", type=Path, help="models, caches, registry (default: SKERRY_HOME)")
    node.add_argument(
        "--drain-seconds",
        type=positive_seconds,
        default=DRAIN_SECONDS,
        metavar="N",
        help="streams may finish this long after SIGTERM; then edges take them back "
        "(default: %(default)g)",
    )
    node.add_argument(
        "--warm-up",
        type=Path,
        metavar="FILE",
        help="JSON list of system prompts to compute before the node is ready",
    )
    add_join(node, decides="what the node is: its pool's model, region, role and runner")
    node.add_argument("--pool", metavar="ID", help="to join, where the token leaves a choice")
    node.add_argument("--lifeline-fd", type=int, help=argparse.SUPPRESS)
    node.add_argument("--incarnation", type=int, default=0, help=argparse.SUPPRESS)


def start(args: argparse.Namespace) -> int:
    home = Home(args.home.absolute()) if args.home else Home.from_environ(os.environ)
    home.create()
    with raised_as(CommandFailed, AddressError):
        return _start_joined(args, home) if args.join is not None else _start(args, home)


def _start(args: argparse.Namespace, home: Home) -> int:
    """Start as the command line says."""
    if missing := [f"--{name}" for name in ("id", "model", "address") if not getattr(args, name)]:
        return complain(f"give {', '.join(missing)}; or --join, on a machine of its own")
    configure_logging()
    from skerry_cli.composition.prompts import PromptsError, read_prompts
    from skerry_cli.home.shared_state import open_registry
    from skerry_regions.registry import RegistryUnavailable

    address = Address.parse(args.address)
    with raised_as(CommandFailed, PromptsError, RegistryUnavailable):
        prompts = read_prompts(args.warm_up) if args.warm_up else ()
        registry = open_registry(home, os.environ)
    options = _options(
        args,
        home,
        id=args.id,
        region=args.region or "local",
        zone=args.residency,
        role=args.role or "hybrid",
        model=args.model,
        runner=args.runner or "numba",
        incarnation=args.incarnation,
        address=address,
        transfer=_beside(address),
        warm_up=prompts,
    )
    return _run(options, args, registry, OrderedRestart())


def _start_joined(args: argparse.Namespace, home: Home) -> int:
    """Run as the control plane says, until it says otherwise; then restart."""
    if told := given_options(args, TOLD):
        return complain(f"{told} and --join exclude each other: the control plane says it")
    configure_logging()
    from skerry_regions.control.machines.messages import NodeAssignment

    link = enrolled(args, home, "node")
    assignment = assigned(link, NodeAssignment)
    settings = assignment.settings
    install(settings.model, home, Lines().show)
    options = _assigned_options(args, home, settings, link.machine, link.url)
    return serve_joined(
        link,
        assignment.fingerprint,
        args.argv,
        lambda registry, orders: _run(options, args, registry, orders),
    )


def _assigned_options(
    args: argparse.Namespace, home: Home, settings: NodeSettings, machine: str, url: str
) -> NodeOptions:
    """Raises CannotJoin or AddressError."""
    if args.address:
        address = Address.parse(args.address)
        transfer = _beside(address)
    else:
        address = Address(host=host_towards(url), port=JOINED_PORT)
        transfer = replace(address, port=JOINED_PORT + 1)
    return _options(
        args,
        home,
        pool=settings,
        id=machine,
        region=settings.region,
        zone=settings.residency,
        role=settings.role,
        model=settings.model,
        runner=settings.runner,
        address=address,
        transfer=transfer,
        warm_up=settings.system_prompts,
    )


def _options(
    args: argparse.Namespace,
    home: Home,
    *,
    id: str,
    transfer: Address,
    pool: NodeSettings | None = None,
    **told: Any,
) -> NodeOptions:
    """Return what the command line says of this machine, else its pool, and what else the node is
    to be."""

    def said(name: str) -> Any:
        own = getattr(args, name)
        return getattr(pool, name, None) if own is None else own

    num_threads: int = said("threads") or default_threads()
    configure_threads(num_threads)  # before libraries are imported
    from skerry_core.ranks import Parallel
    from skerry_regions.node.engines import EngineOptions
    from skerry_regions.node.process import NodeOptions

    disk: int | str | None = said("file_tier")
    return NodeOptions(
        id=id,
        threads=num_threads,
        engine=EngineOptions(
            num_blocks=said("kv_blocks"),
            host_blocks=DEFAULT_KV_BLOCKS,
            streams=said("streams"),
            step_tokens=said("step_tokens"),
            draft_tokens=said("draft_tokens"),
            pin_share=said("pin_share"),
            kv=said("kv"),
            parallel=Parallel.of(said("tensor"), said("pipeline")),
            stages=said("stages") or (),
        ),
        floats=said("weights"),
        file_tier_bytes=(
            disk if isinstance(disk, int) else byte_size_or_none(disk or DEFAULT_FILE_TIER)
        ),
        transfer=Address.parse(args.transfer) if args.transfer else transfer,
        advertise=args.advertise or "",
        credentials=link_credentials(home, os.environ),
        control=Address.parse(args.control or f"unix:{home.run / id}.control"),
        home=home.root,
        drain_seconds=args.drain_seconds,
        **told,
    )


def _run(
    options: NodeOptions, args: argparse.Namespace, registry: Registry, orders: OrderedRestart
) -> int:
    from skerry_cli.composition.serve_node import serve_node
    from skerry_cli.composition.starter import run_to_the_end
    from skerry_regions.node.process import EngineLost, NodeCannotStart

    try:
        return run_to_the_end(
            lambda: serve_node(options, registry, args.lifeline_fd, orders.started, orders.cancel),
            AddressError, NodeCannotStart, EngineLost,
        )  # fmt: skip
    finally:
        registry.close()


def _beside(address: Address) -> Address:
    """Return where KV comes in when nothing else was said: next to the node's frames."""
    return replace(address, path=f"{address.path}.kv") if address.path else replace(address, port=0)
