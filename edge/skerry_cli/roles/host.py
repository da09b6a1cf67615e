"""`skerry host`: a machine that runs nodes of its region's pools, as many as it has room for."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from skerry_cli.arguments import Commands, add_command, byte_size, count, port
from skerry_cli.home.control_home import control_database
from skerry_cli.home.machine import available_cores, available_gpus, configure_threads, free_memory
from skerry_cli.home.state import Home
from skerry_cli.logs import configure_logging
from skerry_cli.output import complain
from skerry_cli.roles.joining import add_join, enrolled, host_towards

MAX_GPUS = 64


def register(commands: Commands) -> None:
    host = add_command(
        commands,
        "host",
        start,
        help="offer this machine: the control plane starts nodes on it",
        description="Offer cores, memory and GPUs of this machine. The control plane starts nodes "
        "of its region's pools here, those with `launcher: machines`, and moves them elsewhere "
        "when the machine is gone. SIGTERM moves them first; after SIGKILL they serve on, and the "
        "next start finds them.",
        example="skerry host --join https://control.example:8789 --token-file /etc/skerry/token",
    )
    host.add_argument("--cpus", type=count, metavar="N", help="cores to offer (default: all)")
    host.add_argument(
        "--memory",
        type=byte_size,
        metavar="SIZE",
        help="memory to offer, such as 64G (default: what is free now)",
    )
    host.add_argument(
        "--gpus", type=gpus, metavar="N,…", help="GPUs to offer, by number (default: all; none)"
    )
    host.add_argument(
        "--host",
        metavar="HOST",
        help="address at which nodes listen, at free ports (default: that towards the control "
        "plane)",
    )
    host.add_argument(
        "--port",
        type=port,
        metavar="PORT",
        help="at which a node listens, and at the next one for KV, where there is room for one "
        "node (default: free ones)",
    )
    host.add_argument(
        "--hostname", metavar="NAME", help="that it is listed by (default: this machine's)"
    )
    host.add_argument("--home", type=Path, help="models, caches (default: SKERRY_HOME)")
    add_join(host, decides="which nodes run here")


def gpus(text: str) -> tuple[int, ...]:
    """Return numbers that commas separate; of none nothing."""
    if text == "none":
        return ()
    numbers = text.split(",")
    if not all(each.isascii() and each.isdigit() and int(each) < 1024 for each in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is neither none nor numbers such as 0,1")
    found = tuple(sorted({int(each) for each in numbers}))
    if len(found) > MAX_GPUS:
        raise argparse.ArgumentTypeError(f"more than {MAX_GPUS} GPUs")
    return found


def start(args: argparse.Namespace) -> int:
    if args.join is None:
        return complain("give --join: what runs here is for a control plane to say")
    home = Home(args.home.absolute()) if args.home else Home.from_environ(os.environ)
    home.create()
    configure_threads(1)
    configure_logging()
    from skerry_cli.composition.serve_node import HostOptions, serve_host
    from skerry_cli.composition.starter import run_to_the_end
    from skerry_regions.process.launch_folder import Slot

    if control_database(home).exists():
        return complain(f"{home.root} is the home of a control plane: give --home")
    link = enrolled(args, home, "host")
    offers = Slot(
        cpus=args.cpus or available_cores(),
        memory=args.memory or free_memory() or 0,
        gpus=available_gpus() if args.gpus is None else args.gpus,
    )
    options = HostOptions(
        offers=offers,
        host=args.host or host_towards(link.url),
        port=args.port or 0,
        advertise=args.advertise or "",
    )
    return run_to_the_end(lambda: serve_host(options, home, link))
