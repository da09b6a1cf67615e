"""The `skerry` command. Each module of this package registers its own subcommands.

Modules imported here stay light, so that `skerry --help` answers at once: the engine and the web
server are imported by `skerry up` alone, when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from skerry import __version__
from skerry.errors import ConnectionFailed, SkerryError
from skerry_cli.home.errors import StateError
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
    parser = build_parser()
    arguments = list(sys.argv[1:] if argv is None else argv)
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
    except (SkerryError, StateError) as error:
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


def build_parser() -> argparse.ArgumentParser:
    from skerry_cli.call import batch, talk
    from skerry_cli.observe import audit, simulate, status, top, trace, usage
    from skerry_cli.platform import lifecycle, terraform, tokens, up
    from skerry_cli.platform.models import command as models
    from skerry_cli.resources import commands as resources
    from skerry_cli.roles import control_plane, dns, edge, geo, node

    parser = argparse.ArgumentParser(
        prog="skerry",
        description="Serverless inference on your own machines.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=version_line())
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    of_platform = (up, lifecycle, status, top, resources, audit, terraform)
    for module in (*of_platform, trace, usage, talk, models, tokens, batch):
        module.register(commands)
    for module in (control_plane, node, edge, dns, geo, simulate):
        module.register(commands)
    return parser
