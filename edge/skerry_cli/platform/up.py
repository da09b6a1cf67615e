"""`skerry up`: arguments, and running it here or in the background."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import orjson

from skerry.runners import RUNNERS
from skerry_cli.arguments import (
    Commands,
    add_command,
    add_console,
    add_engine,
    add_forms,
    add_tls,
    byte_size,
    byte_size_or_none,
    count,
    is_half_tls,
    port,
    tls_of,
)
from skerry_cli.home.control_home import control_is_alone
from skerry_cli.home.instance import AlreadyRunning, claim, running
from skerry_cli.home.left_behind import left_by_topology
from skerry_cli.home.machine import configure_threads, default_threads
from skerry_cli.home.memory import DEFAULT_FILE_TIER
from skerry_cli.home.room import has_room, room_wanted
from skerry_cli.home.state import Home
from skerry_cli.logs import configure_logging
from skerry_cli.output import complain, note
from skerry_cli.report import LineReporter, StartReporter, TerminalReporter
from skerry_regions.models.sources import Sized
from skerry_regions.process.log_files import open_log, tail
from skerry_regions.spec_types import DEFAULT_CONSOLE

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8787
WILDCARDS = ("0.0.0.0", "::")
DEFAULTS = {
    "host": DEFAULT_HOST, "port": DEFAULT_PORT, "runner": "numba", "console": DEFAULT_CONSOLE,
}  # fmt: skip
SINGLE_PROCESS_ONLY = (
    *DEFAULTS, "model", "threads", "memory", "kv_tokens", "file_tier", "pin_share", "streams",
    "step_tokens", "draft_tokens", "weights", "kv", "tensor", "pipeline", "stages", "tls_cert",
    "tls_key", "console",
)  # fmt: skip
STEADY_SECONDS = 60.0  # a restart that loses an engine sooner does not help


def register(commands: Commands) -> None:
    up = add_command(
        commands,
        "up",
        start,
        help="start the platform on this machine",
        description="Start the platform: download what is missing, load the models, serve them.",
        example="skerry up --detach --port 8787",
    )
    up.add_argument("--detach", action="store_true", help="run in the background once it is ready")
    up.add_argument(
        "--host", help=f"address to listen on (default: {DEFAULT_HOST}, this machine only)"
    )
    up.add_argument("--port", type=port, help=f"0 takes a free one (default: {DEFAULT_PORT})")
    up.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="ID",
        help="model to serve, may be repeated (default: the first of `skerry models list`, and "
        "your own)",
    )
    up.add_argument(
        "--threads", type=count, metavar="N", help="cores per model (default: all, at most 16)"
    )
    up.add_argument(
        "--memory",
        type=byte_size,
        metavar="SIZE",
        help="bytes for weights and KV of all models, such as 2G",
    )
    up.add_argument(
        "--kv-tokens", type=count, metavar="N", help="tokens of KV cache per model, instead"
    )
    up.add_argument(
        "--file-tier",
        type=byte_size_or_none,
        metavar="SIZE",
        help="disk per model for KV that memory has no room for; none switches it off (default: "
        f"{DEFAULT_FILE_TIER})",
    )
    add_engine(up)
    add_forms(up)
    up.add_argument(
        "--runner",
        choices=tuple(RUNNERS),
        help="what computes; toy knows no language, only arithmetic, for tests (default: numba)",
    )
    up.add_argument(
        "--topology",
        type=Path,
        metavar="FILE",
        help="start the nodes and edges that this YAML file describes, each as a process",
    )
    add_console(up)
    add_tls(up, note="read again when it changes")
    up.add_argument(
        "--log",
        choices=("text", "json"),
        help="how it reports and logs (default: text for a terminal, JSON lines otherwise)",
    )
    up.add_argument("--report-fd", type=int, help=argparse.SUPPRESS)
    up.add_argument("--anew", action="store_true", help=argparse.SUPPRESS)


def start(args: argparse.Namespace) -> int:
    if args.topology is not None and (named := _given(args, *SINGLE_PROCESS_ONLY)):
        return complain(f"{named} and --topology exclude each other: the file says it")
    for name, default in DEFAULTS.items():
        if getattr(args, name) is None:
            setattr(args, name, default)
    if is_half_tls(args):
        return complain("--tls-cert and --tls-key belong together")
    if args.host in ("", "*"):
        return complain(f"--host {args.host!r}: to listen on every interface say --host 0.0.0.0")
    if args.host in WILDCARDS:
        note("Listening on every interface: whoever reaches this machine may try a token.")
    home = Home.from_environ(os.environ)
    home.create()
    if (instance := running(home)) is not None:
        return _already_running(AlreadyRunning(instance))
    if control_is_alone(home):
        instead = "give this one a home of its own (SKERRY_HOME)"
        if args.topology is not None:
            instead = f"`skerry apply -f {args.topology}` has it start what the file says"
        return complain(f"a control plane runs in {home.root}: {instead}, or end it first")
    if args.topology is None and left_by_topology(home):
        return complain(
            "processes of a topology go on without their supervisor: `skerry up --topology FILE` "
            "takes over, `skerry down` ends them"
        )
    if args.detach:
        return _start_in_background(args, home)
    if args.report_fd is not None:
        from skerry_regions.process.lifeline import Lifeline

        return _start_here(args, home, Lifeline(args.report_fd))
    if args.anew:
        return _start_here(args, home, LineReporter())
    return _start_here(args, home, TerminalReporter(args.log))


def _start_here(args: argparse.Namespace, home: Home, reporter: StartReporter) -> int:
    threads = args.threads or default_threads()
    configure_threads(threads)
    configure_logging(args.log)
    from skerry_cli.composition.starter import run_to_the_end

    def serve() -> None:
        if args.topology is None:
            return _serve_alone(args, threads, home, control, reporter)
        from skerry_cli.composition.serve_topology import serve_topology

        serve_topology(args.topology, home, control, reporter)

    try:
        with claim(home) as control:
            return run_to_the_end(serve)
    except AlreadyRunning as error:
        return _already_running(error)


def _serve_alone(
    args: argparse.Namespace, threads: int, home: Home, control: str, reporter: StartReporter
) -> None:
    from skerry_cli.composition.compose import UpOptions, serve_platform
    from skerry_cli.composition.listening import Where
    from skerry_core.ranks import Parallel
    from skerry_regions.node.engines import EngineOptions

    options = UpOptions(
        where=Where(host=args.host, port=args.port, tls=tls_of(args)),
        models=tuple(args.model),
        threads=threads,
        memory=args.memory,
        kv_tokens=args.kv_tokens,
        file_tier=byte_size(DEFAULT_FILE_TIER) if args.file_tier is None else args.file_tier,
        runner=args.runner,
        console=args.console,
        floats=args.weights,
        engine=EngineOptions(
            streams=args.streams,
            step_tokens=args.step_tokens,
            draft_tokens=args.draft_tokens,
            pin_share=args.pin_share,
            kv=args.kv,
            parallel=Parallel.of(args.tensor, args.pipeline),
            stages=args.stages or (),
        ),
    )
    begun = time.monotonic()

    def restart(port: int) -> None:
        if args.anew and time.monotonic() - begun < STEADY_SECONDS:
            complain("an engine was lost again at once; what it said is above")
            os._exit(1)
        os.execv(sys.executable, [sys.executable, "-m", "skerry", *_anew(args.argv, port)])

    serve_platform(options, home, control, reporter, restart)


def _anew(arguments: list[str], port: int) -> list[str]:
    """Return the command line of a process that takes this one's place: none waits for its
    report."""
    rest = list(arguments)
    if "--report-fd" in rest:
        at = rest.index("--report-fd")
        del rest[at : at + 2]
    return [*(each for each in rest if each != "--anew"), "--port", str(port), "--anew"]


def _given(args: argparse.Namespace, *names: str) -> str:
    """Return options of the command line that were set, as they are written."""
    return ", ".join(
        f"--{name.replace('_', '-')}" for name in names if getattr(args, name) not in (None, [])
    )


def _already_running(error: AlreadyRunning) -> int:
    where = f" at {error.instance.url}" if error.instance and error.instance.url else ""
    return complain(f"{error}{where}. See `skerry status`; stop it with `skerry down`.")


# --- in the background ---------------------------------------------------------------------------


def _start_in_background(args: argparse.Namespace, home: Home) -> int:
    """Start a process in a session of its own and wait until it is ready, or has failed."""
    reader, writer = socket.socketpair()
    rest = [argument for argument in args.argv if argument != "--detach"]
    with os.fdopen(open_log(home.log), "ab") as log:
        begin = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "skerry", *rest, "--report-fd", str(writer.fileno())],
            pass_fds=(writer.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    writer.close()
    try:
        ready = _follow(reader, TerminalReporter(args.log, background=True))
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise
    if ready:
        return 0
    process.wait()
    told = tail(home.log, begin)
    why = "the start failed" if has_room(home) else f"the start failed: {room_wanted(home)}"
    return complain(f"{why}; {home.log} ends with:\n{told}" if told else why)


def _follow(reader: socket.socket, reporter: StartReporter) -> bool:
    """Pass the process's reports on; True once it is ready, False when it ended before."""
    with reader, reader.makefile(encoding="utf-8") as lines:
        for line in lines:
            report = orjson.loads(line)
            if "ready" in report:
                reporter.ready(report["ready"])
                return True
            what = Sized(report["what"], report["size"]) if "size" in report else report["what"]
            reporter.progress(what, report["share"])
    return False
