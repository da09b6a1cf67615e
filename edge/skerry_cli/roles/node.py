"""`skerry node`: one node as a process of its own."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from skerry_cli.arguments import (
    Commands,
    add_command,
    add_residency,
    byte_size_or_none,
    count,
    positive_seconds,
)
from skerry_cli.home.machine import configure_threads, default_threads
from skerry_cli.home.memory import BLOCK_TOKENS, DEFAULT_FILE_TIER, DEFAULT_KV_TOKENS
from skerry_cli.home.state import Home, cluster_key
from skerry_cli.logs import configure_logging
from skerry_cli.output import complain, note
from skerry_cli.report import Lines
from skerry_cli.roles.joining import (
    CannotJoin,
    Orders,
    add_join,
    assigned,
    begin_anew,
    enrolled,
    given_options,
    host_towards,
    install,
)
from skerry_regions.address import Address, AddressError
from skerry_regions.zones import GLOBAL

if TYPE_CHECKING:
    from skerry_regions.control.desired.resources import RoleName, RunnerName
    from skerry_regions.control.planning.launcher import NodeSettings
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
        choices=("numba", "torch", "torch-deterministic", "jax", "toy"),
        help="what computes (default: numba)",
    )
    node.add_argument("--threads", type=count, metavar="N", help="cores (default: all, at most 16)")
    node.add_argument(
        "--kv-blocks",
        type=count,
        metavar="N",
        help=f"KV cache, in blocks of 64 tokens (default: {DEFAULT_KV_BLOCKS})",
    )
    node.add_argument(
        "--file-tier",
        type=byte_size_or_none,
        metavar="SIZE",
        help="disk for KV that memory has no room for; none switches it off (default: "
        f"{DEFAULT_FILE_TIER})",
    )
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a node is, whoever says so."""

    id: str
    region: str
    zone: str
    role: RoleName
    model: str
    runner: RunnerName
    threads: int
    kv_blocks: int
    file_tier: int  # bytes
    address: Address
    transfer: Address
    prompts: tuple[str, ...]


def start(args: argparse.Namespace) -> int:
    home = Home(args.home.absolute()) if args.home else Home.from_environ(os.environ)
    home.create()
    try:
        return _start_joined(args, home) if args.join is not None else _start(args, home)
    except AddressError as error:
        return complain(str(error))


def _start(args: argparse.Namespace, home: Home) -> int:
    """As the command line says."""
    if missing := [f"--{name}" for name in ("id", "model", "address") if not getattr(args, name)]:
        return complain(f"give {', '.join(missing)}; or --join, on a machine of its own")
    configure_logging()
    from skerry_cli.composition.prompts import PromptsError, read_prompts
    from skerry_cli.home.registries import open_registry
    from skerry_regions.registry import RegistryUnavailable

    address = Address.parse(args.address)
    try:
        prompts = read_prompts(args.warm_up) if args.warm_up else ()
        registry = open_registry(home, os.environ)
    except (PromptsError, RegistryUnavailable) as error:
        return complain(str(error))
    part = Part(
        id=args.id,
        region=args.region or "local",
        zone=args.residency,
        role=args.role or "hybrid",
        model=args.model,
        runner=args.runner or "numba",
        threads=args.threads or default_threads(),
        kv_blocks=args.kv_blocks or DEFAULT_KV_BLOCKS,
        file_tier=_file_tier(args, None),
        address=address,
        transfer=Address.parse(args.transfer) if args.transfer else _beside(address),
        prompts=prompts,
    )
    return _run(part, args, home, registry)


def _start_joined(args: argparse.Namespace, home: Home) -> int:
    """As the control plane says, until it says otherwise; then anew."""
    if told := given_options(args, TOLD):
        return complain(f"{told} and --join exclude each other: the control plane says it")
    configure_logging()
    from skerry_regions.control.machines.https_registry import HttpsRegistry
    from skerry_regions.control.machines.messages import NodeAssignment

    try:
        link = enrolled(args, home, "node")
        assignment = assigned(link, NodeAssignment)
        settings = assignment.settings
        install(settings.model, home, Lines().show)
        part = _assigned_part(args, settings, link.machine, link.url)
    except CannotJoin as error:
        return complain(str(error))
    orders = Orders()
    registry = HttpsRegistry(link, fingerprint=assignment.fingerprint)
    registry.on_order = orders.take
    status = _run(part, args, home, registry, orders)
    if orders.is_to_renew and status == 0:
        begin_anew(args.argv)
    return status


def _assigned_part(
    args: argparse.Namespace, settings: NodeSettings, machine: str, url: str
) -> Part:
    """Raises CannotJoin or AddressError."""
    if args.address:
        address = Address.parse(args.address)
        transfer = _beside(address)
    else:
        address = Address(host=host_towards(url), port=JOINED_PORT)
        transfer = replace(address, port=JOINED_PORT + 1)
    return Part(
        id=machine,
        region=settings.region,
        zone=settings.residency,
        role=settings.role,
        model=settings.model,
        runner=settings.runner,
        threads=args.threads or settings.threads or default_threads(),
        kv_blocks=args.kv_blocks or settings.kv_blocks or DEFAULT_KV_BLOCKS,
        file_tier=_file_tier(args, settings.file_tier),
        address=address,
        transfer=Address.parse(args.transfer) if args.transfer else transfer,
        prompts=settings.system_prompts,
    )


def _run(
    part: Part,
    args: argparse.Namespace,
    home: Home,
    registry: Registry,
    orders: Orders | None = None,
) -> int:
    configure_threads(part.threads)
    from skerry_cli.composition.serve_node import serve_node
    from skerry_regions.node.process import EngineLost, NodeCannotStart, NodeOptions
    from skerry_regions.process.startup import Interrupted
    from skerry_regions.wire.link_auth import LinkKey

    options = NodeOptions(
        id=part.id,
        region=part.region,
        zone=part.zone,
        role=part.role,
        model=part.model,
        runner=part.runner,
        threads=part.threads,
        num_blocks=part.kv_blocks,
        file_tier_bytes=part.file_tier,
        address=part.address,
        transfer=part.transfer,
        advertise=args.advertise or "",
        key=LinkKey(cluster_key(home)),
        control=Address.parse(args.control or f"unix:{home.run / part.id}.control"),
        home=home.root,
        drain_seconds=args.drain_seconds,
        warm_up=part.prompts,
    )
    try:
        if orders is None:
            serve_node(options, registry, args.lifeline_fd)
        else:
            serve_node(
                options, registry, args.lifeline_fd,
                started=orders.started, told_to_stop=orders.cancel,
            )  # fmt: skip
    except (AddressError, NodeCannotStart, EngineLost) as error:
        return complain(str(error))
    except Interrupted:
        note("Stopped before it was ready.")
        return 130
    finally:
        registry.close()
    note("Stopped.")
    return 0


def _file_tier(args: argparse.Namespace, told: str | None) -> int:
    """Bytes: as given here, else as the pool says, else by default."""
    if args.file_tier is not None:
        return int(args.file_tier)
    return byte_size_or_none(told or DEFAULT_FILE_TIER)


def _beside(address: Address) -> Address:
    """Where KV comes in when nothing else was said: next to the node's frames."""
    return replace(address, path=f"{address.path}.kv") if address.path else replace(address, port=0)
