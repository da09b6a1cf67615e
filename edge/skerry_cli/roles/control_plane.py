"""`skerry control`: the control plane as a process of its own, and copies of its database."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

from skerry_cli.arguments import (
    Commands,
    add_command,
    add_console,
    add_tls,
    is_half_tls,
    known_hosts,
    port,
    tls_of,
)
from skerry_cli.home.control_home import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    ControlRunning,
    claim_control,
    control_database,
)
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.state import Home
from skerry_cli.logs import configure_logging
from skerry_cli.output import complain, say
from skerry_cli.roles import control_join
from skerry_cli.roles.control_machines import add_machines, join_of
from skerry_regions.address import is_loopback
from skerry_regions.control.reconcile.ray.exposure import AUTH_VARIABLE, Exposed, check_address
from skerry_regions.spec_types import DEFAULT_CONSOLE


def register(commands: Commands) -> None:
    control = add_command(
        commands,
        "control",
        start,
        help="run the control plane: it makes what you want so, and keeps it so",
        description="Run the control plane. `skerry up` starts one by itself. What it has started "
        "outlives it, and is found again by the next one.",
        example="skerry control --topology examples/split.yaml",
    )
    control.add_argument("--host", default=DEFAULT_HOST, help="default: %(default)s")
    control.add_argument(
        "--port", type=port, default=DEFAULT_PORT, help="0 takes a free one (default: %(default)s)"
    )
    add_tls(control, note="needed beyond loopback")
    control.add_argument(
        "--known-host",
        type=known_hosts,
        default=frozenset[str](),
        metavar="NAME,…",
        help="names that it is reached by, beside --host and loopback's; all others are refused",
    )
    control.add_argument(
        "--topology", type=Path, metavar="FILE", help="want what this YAML file describes"
    )
    control.add_argument(
        "--own",
        action="store_true",
        help="end what it has started when it ends itself: edges first, then nodes",
    )
    control.add_argument(
        "--ray",
        type=ray_cluster,
        action="append",
        default=[],
        metavar="REGION=HOST:PORT",
        help="head of a region's Ray cluster, which runs its pools with `launcher: ray`",
    )
    control.add_argument(
        "--state",
        metavar="URL",
        help="where what is wanted is kept: `sqlite`, a file of this machine, or nats://…, which "
        "any number of control planes share, of whom one leads (default: what SKERRY_STATE, the "
        "topology or an earlier start says)",
    )
    add_console(control)
    add_machines(control)
    control.add_argument("--listener-fd", type=int, help=argparse.SUPPRESS)
    control.add_argument("--lifeline-fd", type=int, help=argparse.SUPPRESS)
    actions = control.add_subparsers(metavar="ACTION")
    copy = add_command(
        actions,
        "backup",
        make_backup,
        help="copy the database to a new file",
        description="Copy the database, whole at one moment, while the control plane runs.",
        example="skerry control backup control-2026-11-21.db",
    )
    copy.add_argument("file", type=Path)
    back = add_command(
        actions,
        "restore",
        put_back,
        help="put a copy of the database back",
        description="Put a copy back. The control plane must not run; the former database is kept. "
        "Where control planes share what is wanted, all want the copy's at once, and may run.",
        example="skerry control restore control-2026-11-21.db",
    )
    back.add_argument("file", type=Path)
    control_join.register(actions)


def ray_cluster(text: str) -> tuple[str, str]:
    """Return the region, and the address of its cluster's head."""
    region, _, address = text.partition("=")
    host, _, number = address.rpartition(":")
    try:
        check_address(host.strip("[]"))
    except Exposed as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not REGION=HOST:PORT: {error}") from None
    if not region or not number.isdecimal() or not 0 < int(number) < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is not REGION=HOST:PORT")
    return region, address


def ray_problem(clusters: Sequence[tuple[str, str]]) -> str:
    """Return why Ray cannot be used as it is installed and configured here; empty if it can."""
    if not clusters:
        return ""
    if importlib.util.find_spec("ray") is None:
        return "--ray needs Ray: `pip install '.[ray]'` in Skerry's repository first"
    if os.environ.get(AUTH_VARIABLE) != "token":
        return f"--ray: {AUTH_VARIABLE} has to be `token`, here and on all machines of the cluster"
    if len({region for region, _ in clusters}) < len(clusters):
        return "--ray: a region has one cluster"
    return ""


def start(args: argparse.Namespace) -> int:
    if why := ray_problem(args.ray):
        return complain(why)
    if is_half_tls(args):
        return complain("--tls-cert and --tls-key belong together")
    if args.tls_cert is None and not is_loopback(args.host):
        return complain(
            f"--host {args.host}: tokens would cross the network in the clear; "
            "give --tls-cert and --tls-key"
        )
    configure_logging()
    from skerry_cli.composition.control.options import ControlOptions
    from skerry_cli.composition.listening import Where
    from skerry_cli.composition.serve_control import serve_control
    from skerry_cli.composition.starter import run_to_the_end

    join = join_of(args)
    home = Home.from_environ(os.environ)
    home.create()
    options = ControlOptions(
        where=Where(host=args.host, port=args.port, tls=tls_of(args), descriptor=args.listener_fd),
        topology=args.topology,
        owns=args.own,
        known_hosts=args.known_host,
        console=args.console or DEFAULT_CONSOLE,
        join=join,
        ray=dict(args.ray),
        state=args.state,
        lifeline=args.lifeline_fd,
    )
    return run_to_the_end(lambda: serve_control(options, home))


def make_backup(args: argparse.Namespace) -> int:
    from skerry_regions.control.desired.backup import BackupError, backup

    try:
        backup(control_database(Home.from_environ(os.environ)), args.file)
    except BackupError as error:
        return complain(f"{error}.")
    say(f"Copied to {args.file}.")
    return 0


def put_back(args: argparse.Namespace) -> int:
    from skerry_cli.composition.control.shared import restore_to_log
    from skerry_regions.control.desired.backup import BackupError, restore
    from skerry_regions.control.errors import Busy

    home = Home.from_environ(os.environ)
    home.create()
    try:
        if asyncio.run(restore_to_log(home, args.file)):
            say(f"Restored from {args.file}: all control planes want that now.")
            return 0
        with claim_control(home):
            former = restore(args.file, control_database(home))
    except (BackupError, ControlRunning, CannotStart, Busy) as error:
        return complain(f"{error}.")
    kept = f" The former database is {former} now." if former is not None else ""
    say(f"Restored from {args.file}.{kept}")
    return 0
