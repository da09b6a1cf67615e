"""`skerry stage`: a machine that holds some layers of models that nodes elsewhere divide."""

from __future__ import annotations

import argparse
import os
import resource
import sys
from pathlib import Path

from skerry_cli.arguments import Commands, add_command, byte_size, count, stage
from skerry_cli.home.errors import CommandFailed, raised_as
from skerry_cli.home.keys import link_credentials
from skerry_cli.home.machine import configure_threads, default_threads
from skerry_cli.home.state import Home
from skerry_cli.logs import configure_logging
from skerry_cli.output import complain
from skerry_regions.address import AddressError


def register(commands: Commands) -> None:
    parser = add_command(
        commands,
        "stage",
        start,
        help="serve stages: layers of models that nodes on other machines divide",
        description="Serve ranks of pools with `parallel: {pipeline: N, stages: [HOST:PORT, …]}`, "
        "each in a process of its own. The machine needs the model (`skerry models pull`) and, "
        "beyond loopback, a certificate: that of a `skerry host` of the same home, or one in "
        "SKERRY_LINK_TLS. SIGTERM ends the ranks: drain their nodes first.",
        example="skerry models pull @cf/huggingfacetb/smollm2-135m-instruct\n"
        "  skerry stage --listen 10.0.0.7:8795 --ranks 2 --memory 3G",
    )
    parser.add_argument(
        "--listen",
        type=stage,
        metavar="HOST:PORT",
        help="where nodes reach it (port 0: a free one)",
    )
    parser.add_argument(
        "--ranks", type=count, default=1, metavar="N", help="served at once (default: %(default)s)"
    )
    parser.add_argument(
        "--threads", type=count, metavar="N", help="cores of each (default: all, divided by ranks)"
    )
    parser.add_argument(
        "--memory",
        type=byte_size,
        metavar="SIZE",
        help="address space of each, such as 3G (default: not limited)",
    )
    parser.add_argument("--home", type=Path, help="models, caches (default: SKERRY_HOME)")
    parser.add_argument("--connection-fd", type=int, help=argparse.SUPPRESS)


def start(args: argparse.Namespace) -> int:
    home = Home(args.home.absolute()) if args.home else Home.from_environ(os.environ)
    home.create()
    threads = args.threads or max(1, default_threads() // args.ranks)
    configure_threads(threads if args.connection_fd is not None else 1)
    configure_logging()
    credentials = link_credentials(home, os.environ)
    if args.connection_fd is not None:
        if args.memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (args.memory, args.memory))
        from skerry_regions.node.ranks.stages import serve_stage

        with raised_as(CommandFailed, OSError):
            serve_stage(args.connection_fd, credentials, home=home.root, threads=threads)
    if args.listen is None:
        return complain("give --listen: HOST:PORT of this machine, where nodes reach it")
    from skerry_cli.composition.serve_node import StageOptions, serve_stages
    from skerry_cli.composition.starter import run_to_the_end
    from skerry_regions.node.ranks.stages import stage_address

    command = [sys.executable, "-m", "skerry", "stage", "--home", str(home.root)]
    command += ["--threads", str(threads)]
    if args.memory is not None:
        command += ["--memory", str(args.memory)]
    options = StageOptions(
        address=stage_address(args.listen), most=args.ranks, command=tuple(command)
    )
    return run_to_the_end(lambda: serve_stages(options, credentials), AddressError)
