"""`--join`: a node or an edge on a machine of its own, which the control plane decides on.

The first start spends a join token; what it got is kept in the home, so that later starts of the
same command need none. What to run is fetched at every start; while the control plane does not
answer, it is what the machine ran last.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from skerry_cli.home.errors import CommandFailed, raised_as
from skerry_cli.home.keys import keep_private
from skerry_cli.home.state import Home
from skerry_cli.output import note

if TYPE_CHECKING:
    from skerry_regions.control.machines.link import ControlLink
    from skerry_regions.control.machines.messages import EdgeAssignment, Kind, NodeAssignment
    from skerry_regions.models.sources import Progress
    from skerry_regions.registry import Registry

TOKEN_VARIABLE = "SKERRY_JOIN_TOKEN"
ASK_SECONDS = 2.0  # between questions of a machine that is paused, or cannot reach anybody
MAX_TOKEN_BYTES = 4096

T = TypeVar("T", "NodeAssignment", "EdgeAssignment")


class CannotJoin(CommandFailed):
    """The message says why and what to do."""


def add_join(parser: argparse.ArgumentParser, *, decides: str) -> None:
    """Add `--join` and its options; `decides` is what the control plane says, and is not given."""
    group = parser.add_argument_group(
        "on a machine of its own",
        f"The control plane at URL says {decides}. The first start spends a join token (`skerry "
        "control token create`); the home remembers, and later starts need none.",
    )
    group.add_argument(
        "--join",
        metavar="URL",
        help="https://HOST:PORT of `skerry control`; of several, with commas between them",
    )
    secret = group.add_mutually_exclusive_group()
    secret.add_argument(
        "--token",
        metavar="T",
        help=f"join token (default: {TOKEN_VARIABLE}; other users see a command's arguments)",
    )
    secret.add_argument("--token-file", type=Path, metavar="FILE", help="that has the join token")
    group.add_argument(
        "--advertise",
        metavar="HOST",
        help="where other machines reach this one, where that is not the address it listens on",
    )


def given_options(args: argparse.Namespace, defaults: Mapping[str, object]) -> str:
    """Return of these options those that were given, as they are written."""
    given = [name for name, default in defaults.items() if getattr(args, name) != default]
    return ", ".join(f"--{name.replace('_', '-')}" for name in given)


def enrolled(args: argparse.Namespace, home: Home, kind: Kind) -> ControlLink:
    """Return the link of this machine, which joins if it has not yet. Raises CannotJoin."""
    from skerry_regions.control.machines.calls import ControlAway, ControlRefused, checked_url
    from skerry_regions.control.machines.folder import JoinError
    from skerry_regions.control.machines.link import ControlLink, has_joined, join

    with raised_as(CannotJoin, JoinError):
        url = checked_url(args.join)
        if not has_joined(home.machine):
            joined = join(
                home.machine, url, _token(args), kind=kind, pool=getattr(args, "pool", None) or "",
                hostname=getattr(args, "hostname", None) or "",
                keep=lambda joined: _keep_first_key(home, kind, joined.cluster_key),
            )  # fmt: skip
            note(f"Joined {url} as {joined.machine}.")
        link = ControlLink(home.machine)
    try:
        is_ours = link.kind == kind and link.move_to(url)
    except OSError as error:
        raise CannotJoin(f"{error.filename}: {error.strerror}") from None
    if not is_ours:
        raise CannotJoin(
            f"{home.root} belongs to the {link.kind} {link.machine} of {link.url}: "
            f"delete {home.machine} to join elsewhere, or give --home"
        )
    try:
        keep_private(home.cluster_key, link.renew().cluster_key)
    except ControlRefused as error:
        raise CannotJoin(f"{url} refuses: {error}") from None
    except (JoinError, OSError) as error:
        raise CannotJoin(str(error)) from None
    except ControlAway:
        pass  # it goes on with what it has
    return link


def assigned(link: ControlLink, type_: type[T]) -> T:
    """Return what to run; waits while that is nothing. Raises CannotJoin."""
    from skerry_regions.control.machines.calls import ControlAway, ControlRefused
    from skerry_regions.control.machines.messages import Paused

    told = ""
    while True:
        try:
            assignment = link.assignment()
        except ControlRefused as error:
            raise CannotJoin(f"{link.url} refuses: {error}") from None
        except ControlAway as error:
            reason = f"{link.url} is away: {error}"
            if isinstance(before := link.last_assignment, type_):
                note(f"{reason}. Going on as before.")
                return before
            assignment = Paused(reason=reason)  # also one that was paused: that may be over
        if isinstance(assignment, type_):
            return assignment
        if not isinstance(assignment, Paused):
            raise CannotJoin(f"{link.url} has another kind of assignment; update Skerry")
        if assignment.reason != told:
            told = assignment.reason
            note(f"Waiting: {told}.")
        time.sleep(ASK_SECONDS)


def host_towards(url: str) -> str:
    """Return this machine's address on the way to the control plane. Raises CannotJoin."""
    parts = urlsplit(url.partition(",")[0])
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise CannotJoin(f"{url}: {error.strerror}") from None
    for family, _, _, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    raise CannotJoin(f"there is no way to {url} from here; say where to listen")


def _keep_first_key(home: Home, kind: Kind, key: bytes) -> None:
    """Raises CannotJoin in the home of another platform."""
    has_other_key = home.cluster_key.exists() and home.cluster_key.read_bytes() != key
    if has_other_key or (kind == "edge" and home.secret.exists()):
        raise CannotJoin(f"{home.root} is the home of another platform: give --home")
    keep_private(home.cluster_key, key)


def install(model: str, home: Home, progress: Progress) -> None:
    """Download the model's files where they are missing. Raises CannotJoin."""
    from skerry.errors import SkerryError
    from skerry_regions.models.catalog import Catalog, CatalogError
    from skerry_regions.models.problems import ModelProblem
    from skerry_regions.models.sources import Hub
    from skerry_regions.models.store import ModelStore

    try:
        spec = Catalog.load(home.root).resolve(model)
        ModelStore(home.root, hub=Hub.from_environ(os.environ)).pull(spec, progress)
    except SkerryError as error:
        raise CannotJoin(f"{error.message} Add it to the catalog of this machine.") from None
    except (CatalogError, ModelProblem, OSError) as error:
        raise CannotJoin(str(error)) from None


def serve_joined(
    link: ControlLink,
    fingerprint: str,
    argv: list[str],
    serve: Callable[[Registry, OrderedRestart], int],
) -> int:
    """Serve what the control plane has assigned, until it orders otherwise; then start again.

    `fingerprint` is the assignment's. Returns the exit status of `serve`.
    """
    from skerry_regions.control.machines.https_registry import HttpsRegistry

    orders = OrderedRestart()
    registry = HttpsRegistry(
        link, fingerprint=fingerprint, on_order=orders.take, on_revoked=orders.revoke
    )
    status = serve(registry, orders)
    if orders.is_revoked:
        note(f"The control plane has revoked the machine {link.machine}.")
        return status or 1
    if orders.is_to_renew and status == 0:
        note("The control plane wants something else: starting again.")
        os.execv(sys.executable, [sys.executable, "-m", "skerry", *argv])
    return status


class OrderedRestart:
    """What the control plane orders while the machine serves: to restart, or to end."""

    def __init__(self) -> None:
        self._is_ordered = False
        self._is_cancelled = False
        self.is_revoked = False  # this machine is no longer wanted
        self._stop: Callable[[], None] = lambda: None

    @property
    def is_to_renew(self) -> bool:
        """Return whether it restarts when it has drained."""
        return self._is_ordered and not (self._is_cancelled or self.is_revoked)

    def started(self, stop: Callable[[], None]) -> None:
        """Note what serves: `stop` drains it; from any thread."""
        self._stop = stop

    def take(self, order: str) -> None:
        if order == "renew" and not self._is_ordered:
            self._is_ordered = True
            self._stop()

    def revoke(self) -> None:
        """End what runs here: the other machines refuse links of this one."""
        if not self.is_revoked:
            self.is_revoked = True
            self._stop()

    def cancel(self) -> None:
        """End it: its operator stops it, also where it drains by order already."""
        self._is_cancelled = True


def _token(args: argparse.Namespace) -> str:
    """Raises CannotJoin."""
    if args.token is not None:
        return str(args.token)
    if args.token_file is None:
        if given := os.environ.get(TOKEN_VARIABLE):
            return given
        raise CannotJoin(
            f"this machine has not joined yet: give --token-file, --token or {TOKEN_VARIABLE}"
        )
    try:
        with args.token_file.open("rb") as file:
            token = str(file.read(MAX_TOKEN_BYTES).decode("ascii").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise CannotJoin(f"{args.token_file}: {error}") from None
    if not token:
        raise CannotJoin(f"{args.token_file} is empty: write a join token into it")
    return token
