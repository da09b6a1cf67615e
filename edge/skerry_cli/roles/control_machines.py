"""The options of `skerry control` for machines that join, and for whence more of them come."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from skerry_cli.arguments import port
from skerry_cli.home.errors import raised_as
from skerry_cli.roles.control_join import duration
from skerry_cli.roles.control_pods import BadOptions, add_pods, pods_of

if TYPE_CHECKING:
    from skerry_cli.composition.serve_machines import JoinOptions
    from skerry_regions.control.machines.webhook import WebhookOptions

DEFAULT_JOIN_PORT = 8789


def add_machines(parser: argparse.ArgumentParser) -> None:
    """Add `--join-host` and what needs it."""
    parser.add_argument(
        "--join-host",
        metavar="HOST",
        help="let machines join over HTTPS at this address (default: none joins)",
    )
    parser.add_argument(
        "--join-port",
        type=port,
        default=DEFAULT_JOIN_PORT,
        metavar="PORT",
        help="of --join-host; 0 takes a free one (default: %(default)s)",
    )
    parser.add_argument(
        "--machines-webhook",
        metavar="URL",
        help="where to request hosts for pools with `launcher: machines`, and say which are idle",
    )
    parser.add_argument(
        "--machines-webhook-secret-file",
        type=Path,
        metavar="FILE",
        help="what signs its messages: 24 bytes or more in base64, with or without `whsec_`",
    )
    parser.add_argument(
        "--machines-webhook-idle",
        type=duration,
        metavar="TIME",
        help="without a node, after which a host is idle, such as 30m (default: 10m)",
    )
    add_pods(parser)


def join_of(args: argparse.Namespace) -> JoinOptions | None:
    """Return what the options say; None where no machine joins. Raises BadOptions."""
    for name in ("machines_webhook", "kubernetes"):
        if getattr(args, name) is not None and args.join_host is None:
            raise BadOptions(f"--{name.replace('_', '-')}: machines join, so give --join-host")
    if args.join_host is None:
        return None
    from skerry_cli.composition.serve_machines import JoinOptions

    return JoinOptions(
        host=args.join_host, port=args.join_port, pods=pods_of(args), webhook=_webhook_of(args)
    )


def _webhook_of(args: argparse.Namespace) -> WebhookOptions | None:
    from skerry_regions.control.machines.webhook import (
        IDLE_SECONDS,
        WebhookError,
        WebhookOptions,
    )

    if (args.machines_webhook is None) != (args.machines_webhook_secret_file is None):
        raise BadOptions("--machines-webhook and --machines-webhook-secret-file belong together")
    if args.machines_webhook is None:
        return None
    options = WebhookOptions(
        url=args.machines_webhook,
        secret_file=args.machines_webhook_secret_file,
        idle_seconds=args.machines_webhook_idle or IDLE_SECONDS,
    )
    with raised_as(BadOptions, WebhookError):
        options.check()
    return options
