"""`skerry node`: one node as a process of its own."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from skerry_edge.cli.arguments import (
    Commands,
    add_command,
    add_residency,
    byte_size_or_none,
    count,
    positive_seconds,
)
from skerry_edge.cli.logs import configure_logging
from skerry_edge.cli.machine import configure_threads, default_threads
from skerry_edge.cli.memory import BLOCK_TOKENS, DEFAULT_FILE_TIER, DEFAULT_KV_TOKENS
from skerry_edge.cli.output import complain, note
from skerry_edge.cli.state import Home, cluster_key

if TYPE_CHECKING:
    from skerry_regions.address import Address

DRAIN_SECONDS = 30.0


def register(commands: Commands) -> None:
    node = add_command(
        commands,
        "node",
        start,
        help="run one node: a model that edges send their streams to",
        description="Run one node. `skerry up --topology` starts nodes by itself.",
        example="skerry node --id decode-1 --role decode --region fra "
        "--model @cf/huggingfacetb/smollm2-135m-instruct --address unix:/run/decode-1.sock",
    )
    node.add_argument("--id", required=True, help="its name, unique among all nodes")
    node.add_argument("--role", choices=("prefill", "decode", "hybrid"), default="hybrid")
    node.add_argument("--region", default="local", help="where it stands (default: %(default)s)")
    add_residency(node)
    node.add_argument("--model", required=True, metavar="ID", help="id or alias, installed here")
    node.add_argument(
        "--runner",
        choices=("numba", "torch", "torch-deterministic", "jax", "toy"),
        default="numba",
        help="what computes (default: %(default)s)",
    )
    node.add_argument("--threads", type=count, metavar="N", help="cores (default: all, at most 16)")
    node.add_argument(
        "--kv-blocks",
        type=count,
        default=DEFAULT_KV_TOKENS // BLOCK_TOKENS,
        metavar="N",
        help="KV cache, in blocks of 64 tokens (default: %(default)s)",
    )
    node.add_argument(
        "--file-tier",
        type=byte_size_or_none,
        default=DEFAULT_FILE_TIER,
        metavar="SIZE",
        help="disk for KV that memory has no room for; none switches it off (default: %(default)s)",
    )
    node.add_argument(
        "--address",
        required=True,
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
    node.add_argument("--lifeline-fd", type=int, help=argparse.SUPPRESS)


def start(args: argparse.Namespace) -> int:
    threads = args.threads or default_threads()
    configure_threads(threads)
    configure_logging()
    from skerry_edge.cli.prompts import PromptsError, read_prompts
    from skerry_edge.cli.registries import open_registry
    from skerry_edge.cli.serve_node import serve_node
    from skerry_regions.address import Address, AddressError
    from skerry_regions.link_auth import LinkKey
    from skerry_regions.node_process import EngineLost, NodeCannotStart, NodeOptions
    from skerry_regions.registry import RegistryUnavailable
    from skerry_regions.startup import Interrupted

    home = Home(args.home.absolute()) if args.home else Home.from_environ(os.environ)
    home.create()
    try:
        address = Address.parse(args.address)
        options = NodeOptions(
            id=args.id,
            region=args.region,
            zone=args.residency,
            role=args.role,
            model=args.model,
            runner=args.runner,
            threads=threads,
            num_blocks=args.kv_blocks,
            file_tier_bytes=args.file_tier,
            address=address,
            transfer=Address.parse(args.transfer) if args.transfer else _beside(address),
            key=LinkKey(cluster_key(home)),
            control=Address.parse(args.control or f"unix:{home.run / args.id}.control"),
            home=home.root,
            drain_seconds=args.drain_seconds,
            warm_up=read_prompts(args.warm_up) if args.warm_up else (),
        )
        serve_node(options, open_registry(home, os.environ), args.lifeline_fd)
    except (AddressError, PromptsError, NodeCannotStart, EngineLost, RegistryUnavailable) as error:
        return complain(str(error))
    except Interrupted:
        note("Stopped before it was ready.")
        return 130
    note("Stopped.")
    return 0


def _beside(address: Address) -> Address:
    """Where KV comes in when nothing else was said: next to the node's frames."""
    return replace(address, path=f"{address.path}.kv") if address.path else replace(address, port=0)
