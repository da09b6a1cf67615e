"""The `skerry` command. Each module of this package registers its own subcommands.

A command imports its own module alone, and `skerry --help` them all, which therefore stay light:
the engine and the web server are imported by `skerry up` when it runs. Where the SDK alone is
installed, the commands that call a platform work, and the others say what they need.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from skerry import __version__
from skerry.__main__ import INSTALL
from skerry.errors import ConnectionFailed, SkerryError
from skerry_cli.arguments import Commands
from skerry_cli.home.errors import CommandFailed
from skerry_cli.output import complain

EPILOG = """\
first minute:
  skerry up --detach
  eval "$(skerry env)"
  skerry run @cf/huggingfacetb/smollm2-135m-instruct "Why is the sky blue?"

All state is kept under SKERRY_HOME (~/.skerry unless set).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the process's exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser(arguments[0] if arguments else "")
    if not arguments:
        parser.print_help()
        return 0
    args = parser.parse_args(arguments)
    args.argv = arguments
    try:
        return int(args.command(args))
    except ConnectionFailed as error:
        reason = error.message.rstrip(".")
        return complain(f"{reason}. Is Skerry running? Start it with `skerry up`.")
    except (SkerryError, CommandFailed) as error:
        return complain(str(error))
    except KeyboardInterrupt:
        return 130  # as a shell reports SIGINT
    except BrokenPipeError:  # `skerry … | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def version_line() -> str:
    """Return the version of Skerry, and what it runs on."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    return f"skerry {__version__} (Python {python})"


COMMANDS = {
    "platform.up": ("up",),
    "platform.lifecycle": ("down", "reload", "env"),
    "observe.console": ("console",),
    "observe.status": ("status",),
    "observe.top": ("top",),
    "resources.commands": ("get", "apply", "delete", "history", "rollback"),
    "observe.audit": ("audit",),
    "platform.terraform": ("terraform",),
    "observe.trace": ("trace",),
    "observe.usage": ("usage",),
    "call.talk": ("run", "chat"),
    "platform.models.command": ("models",),
    "platform.tokens": ("tokens",),
    "call.batch": ("batch",),
    "platform.state": ("state",),
    "roles.control_plane": ("control",),
    "roles.node": ("node",),
    "roles.edge": ("edge",),
    "roles.host": ("host",),
    "roles.stage": ("stage",),
    "roles.dns": ("dns",),
    "roles.geo": ("geo",),
    "observe.simulate": ("simulate",),
}
"""Modules and the commands of each, in the order of `--help`."""

CLIENTS = {"platform.models.command": "call.served"}
"""What the client alone has in the place of a module."""

OURS = ("skerry", "skerry_cli", "skerry_core", "skerry_dns", "skerry_edge", "skerry_regions")


def build_parser(command: str = "") -> argparse.ArgumentParser:
    """Return the arguments of all commands that this installation has; where a module has
    `command`, of that module's alone."""
    modules = [module for module, its_own in COMMANDS.items() if command in its_own] or COMMANDS
    parser = argparse.ArgumentParser(
        prog="skerry",
        description="Serverless inference on your own machines.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version_line())
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    missing = [each for each in modules if not _is_registered(each, commands)]
    if missing:
        parser.epilog = f"{INSTALL}\n\n{EPILOG}"
    for name in missing:
        if name in CLIENTS:
            _is_registered(CLIENTS[name], commands)
        else:
            _register_missing(name, commands)
    return parser


def _is_registered(name: str, commands: Commands) -> bool:
    """Register a module's commands; return whether this installation has what it needs."""
    try:
        module = importlib.import_module(f"skerry_cli.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise  # ours and gone: a bug, not an extra that is missing
        return False
    module.register(commands)
    return True


def _register_missing(name: str, commands: Commands) -> None:
    """Have the command of a module say what it needs, whatever its arguments."""
    command = {"control_plane": "control"}.get(last := name.rpartition(".")[2], last)
    parser = commands.add_parser(
        command, help="not installed here", add_help=False, prefix_chars="\0"
    )
    parser.add_argument("arguments", nargs="*")
    parser.set_defaults(command=lambda args: complain(f"{command} is not installed. {INSTALL}"))
