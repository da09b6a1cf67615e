"""`skerry status`: what runs in this home, whoever started it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from skerry_cli.arguments import Commands, add_command
from skerry_cli.home.instance import Instance, running
from skerry_cli.home.state import Home
from skerry_cli.output import note, say
from skerry_cli.tables import resource_table, short_model, table

if TYPE_CHECKING:
    from skerry_cli.home.control import EdgeStatus, NodeStatus, Status
    from skerry_cli.home.platform_client import ControlView

NOT_RUNNING = "Skerry is not running. Start it with `skerry up`."


def register(commands: Commands) -> None:
    status = add_command(
        commands,
        "status",
        show,
        help="show what runs",
        description="Show what `skerry up` runs, what the control plane runs, and what goes wrong.",
        example="skerry status --json",
    )
    status.add_argument("--json", action="store_true", help="print one JSON object")


def show(args: argparse.Namespace) -> int:
    home = Home.from_environ(os.environ)
    instance = running(home)
    status = read_status(home, instance)
    is_running = bool(status.url or status.control)
    if args.json:
        import msgspec

        say(msgspec.json.encode(msgspec.structs.replace(status, notes=[])).decode())
        for line in status.notes:
            note(line)
        return 0 if is_running else 1
    if instance is not None and not status.url:
        note(f"Skerry is starting (process {instance.pid}).")
        return 1
    if not is_running:
        note(unsupervised(home) or NOT_RUNNING)
        return 1
    if instance is not None:
        say(f"{status.url}  (process {instance.pid})")
        if not status.includes_control:
            say(_nodes(status.nodes))
        if not status.includes_control and any(edge.pid != instance.pid for edge in status.edges):
            say("\n" + _edges(status.edges))
    if status.control is not None:
        say(("\n" if instance is not None else "") + control_text(status.control))
    for line in [*status.notes, *(status.control.troubles() if status.control else ())]:
        note(line)
    return 0


def unsupervised(home: Home) -> str:
    """Return a sentence on what goes on without its supervisor; nothing where nothing does."""
    from skerry_cli.home.left_behind import left_behind

    names = [record.id for record, _ in left_behind(home)]
    if not names:
        return ""
    return (
        f"Nothing supervises {', '.join(names)}: they serve on. `skerry up --topology FILE` or "
        "`skerry control`, whichever has started them, takes over; `skerry down` ends them."
    )


def read_status(home: Home, instance: Instance | None) -> Status:
    """Return what the platform's process says and what the control plane does, where they run.

    Raises NoAnswer of the process; a control plane that does not answer is a note.
    """
    from msgspec.structs import replace

    from skerry_cli.home.control import Status, ask_status
    from skerry_cli.home.control_home import control_runs
    from skerry_cli.home.platform_client import GLANCE_SECONDS, PlatformClient, PlatformError

    status = Status(url="", edges=[], nodes=[])
    if instance is not None:
        if not instance.ready:
            return status
        status = ask_status(instance.control)
    if not control_runs(home):
        return status
    try:
        client = PlatformClient.of_home(home)
        return replace(status, control=PlatformClient(
            client.url, client.token, client.ca_file, GLANCE_SECONDS
        ).view())  # fmt: skip
    except PlatformError as error:
        return replace(status, notes=[*status.notes, f"the control plane: {error}"])


def followed_status(home: Home) -> Callable[[], Status] | None:
    """Return what reads the status of what runs, once it serves; None where nothing does."""
    from skerry_cli.home.control_home import control_runs

    instance = running(home)
    serves = control_runs(home) if instance is None else instance.ready
    return partial(read_status, home, instance) if serves else None


def _nodes(nodes: list[NodeStatus]) -> str:
    rows = [
        [node.id, node.state, str(node.streams), node.role, node.region, short_model(node.model)]
        for node in nodes
    ]
    return table(("*NODE", "STATE", ">STREAMS", "ROLE", "*REGION", "*MODEL"), rows)


def _edges(edges: list[EdgeStatus]) -> str:
    rows = [[edge.id, edge.region, edge.url, str(edge.pid)] for edge in edges]
    return table(("*EDGE", "*REGION", "*URL", ">PID"), rows)


def control_text(view: ControlView) -> str:
    """Return what a control plane wants and runs, as tables of 80 columns."""
    seen = "" if view.observed_revision >= view.revision else f", done: {view.observed_revision}"
    head = f"control plane {view.url}  (revision {view.revision}{seen})"
    if not view.regions:
        return f"{head}\nIt runs nothing: `skerry apply -f FILE` says what it should."
    parts = [
        resource_table(kind, resources)
        for kind, resources in (
            ("regions", view.regions),
            ("pools", view.pools),
            ("edge_nodes", view.edge_nodes),
            ("deployments", view.deployments),
        )
        if resources
    ]
    rows = [
        [
            each["id"], each["state"], str(each["streams"]), str(each["pid"]),
            "" if each["updated"] else "of an older spec",
        ]
        for each in view.nodes
    ]  # fmt: skip
    if rows:
        parts.append(table(("*PROCESS", "STATE", ">STREAMS", ">PID", ""), rows))
    return "\n\n".join([head, *parts])
