"""`skerry down`, `skerry reload` and `skerry env`."""

from __future__ import annotations

import argparse
import os
import select
import shlex
import signal
import sys
import time
from typing import TYPE_CHECKING

from skerry_cli.arguments import Commands, add_command, positive_seconds
from skerry_cli.home.control_home import control_runs
from skerry_cli.home.errors import StateError
from skerry_cli.home.instance import Instance, claim, running
from skerry_cli.home.left_behind import end, forget_processes, left_behind
from skerry_cli.home.state import Home, read_config
from skerry_cli.output import complain, note, say

if TYPE_CHECKING:
    from skerry_cli.home.control import EdgeStatus

DRAIN_SECONDS = 220.0  # to drain in: as the unit and the container have it
KILL_SECONDS = 10.0
RELOAD_SECONDS = 120.0  # for edges to be replaced
CONTROL_SECONDS = 5.0  # in which a control plane ends that was part of a platform
LOOK_SECONDS = 0.05  # a lock, or a process, cannot be waited for with a deadline


def register(commands: Commands) -> None:
    down = add_command(
        commands,
        "down",
        stop,
        help="stop the platform",
        description="Stop the platform: running streams may finish first, then it ends.",
        example="skerry down --timeout 5",
    )
    down.add_argument(
        "--timeout",
        type=positive_seconds,
        default=DRAIN_SECONDS,
        metavar="SECONDS",
        help="kill it when it has not ended by then (default: %(default)g)",
    )
    add_command(
        commands,
        "reload",
        reload,
        help="read the configuration again, without a pause",
        description="Read limits, tokens and certificates again, which happens by itself within a "
        "second of a change, too. Edges of a topology are replaced by new processes, one after the "
        "other: streams that run finish where they are.",
        example="skerry reload",
    )
    add_command(
        commands,
        "env",
        show_env,
        help="print shell exports of the URL, account and API token",
        description="Print what a shell needs to reach the platform with the SDK or curl.",
        example='eval "$(skerry env)"',
    )


def stop(args: argparse.Namespace) -> int:
    home = Home.from_environ(os.environ)
    instance = running(home)
    if instance is None:
        return _end_left_behind(home, args.timeout)
    try:
        process = os.pidfd_open(instance.pid)
    except ProcessLookupError:
        note("Skerry has just ended.")
        return 0
    _signal(instance, signal.SIGTERM)
    if _ended(home, process, args.timeout):
        say(f"Stopped (process {instance.pid}).")
        return 0 if not left_behind(home) else _end_left_behind(home, args.timeout)
    note(f"Process {instance.pid} has not ended within {args.timeout:g} s: killing it.")
    _signal(instance, signal.SIGKILL)
    if _ended(home, process, KILL_SECONDS):
        return 0 if not left_behind(home) else _end_left_behind(home, KILL_SECONDS)
    return complain(f"process {instance.pid} cannot be killed; see `ps -p {instance.pid}`.")


def _end_left_behind(home: Home, seconds: float) -> int:
    """End what a `skerry up` that was killed has left."""
    left = left_behind(home)
    if not left:
        note("Skerry is not running.")
        return 0
    deadline = time.monotonic() + CONTROL_SECONDS
    while control_runs(home) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    left = left_behind(home)  # with what it has left
    note(f"Ending {len(left)} processes that went on without their supervisor.")
    end(left, seconds)
    with claim(home):  # which forgets the former one
        if not control_runs(home):
            forget_processes(home)
    say("Stopped.")
    return 0


def reload(args: argparse.Namespace) -> int:
    from skerry_cli.home.control import NoAnswer, ask_status

    instance = running(Home.from_environ(os.environ))
    if instance is None or not instance.ready:
        return complain("Skerry is not running, or not ready yet; see `skerry status`.")
    try:
        status = ask_status(instance.control)
        before = {_name(edge): edge.pid for edge in status.edges}
        known = set(status.notes)
        _signal(instance, signal.SIGHUP)
        if instance.pid in before.values():  # one process for all
            say(f"Process {instance.pid} reads its configuration again; its log says more.")
            return 0
        deadline = time.monotonic() + RELOAD_SECONDS
        while waiting := [
            _name(edge) for edge in status.edges if edge.pid in (0, before.get(_name(edge)))
        ]:
            failed = [
                note
                for note in status.notes
                if note not in known and note.partition(":")[0].rpartition("-")[0] in waiting
            ]
            if len(failed) == len(waiting):
                return complain("\n".join(failed))
            if time.monotonic() > deadline:
                return complain(f"not replaced yet: {', '.join(waiting)}; see their logs.")
            time.sleep(LOOK_SECONDS)
            status = ask_status(instance.control)
    except NoAnswer as error:
        return complain(error.problem)
    say(f"Replaced: {', '.join(before)}. Streams that run finish where they are.")
    return 0


def _name(edge: EdgeStatus) -> str:
    """Return what an edge is called, whichever process serves as it."""
    return edge.id.rpartition("-")[0]


def show_env(args: argparse.Namespace) -> int:
    home = Home.from_environ(os.environ)
    config = read_config(home)
    if config is None:
        return complain("nothing to export yet: start the platform with `skerry up` first.")
    if running(home) is None:
        note("Skerry is not running; these values hold once `skerry up` has started it.")
    say(f"export SKERRY_BASE_URL={shlex.quote(config.url)}")
    say(f"export SKERRY_ACCOUNT_ID={shlex.quote(config.account_id)}")
    say(f"export SKERRY_API_TOKEN={shlex.quote(config.api_token)}")
    if sys.stdout.isatty():
        note('Run `eval "$(skerry env)"` to set them in this shell.')
    return 0


def _signal(instance: Instance, number: signal.Signals) -> None:
    try:
        os.kill(instance.pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise StateError(f"Process {instance.pid} belongs to another user.") from None


def _ended(home: Home, process: int, seconds: float) -> bool:
    """Wait until no process holds the platform's lock, and the process (a pidfd) has ended."""
    deadline = time.monotonic() + seconds
    while running(home) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return bool(select.select([process], [], [], max(0.0, deadline - time.monotonic()))[0])
