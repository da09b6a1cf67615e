"""The control plane of `skerry up`: a process beside it, started again when it dies.

`skerry up` keeps its listening socket, so that callers wait in the backlog meanwhile. When `skerry
up` is killed, it ends too; what it has started goes on, and the next one adopts it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import AsyncGenerator, Generator
from urllib.parse import urlsplit

from skerry_cli.home.control_home import DEFAULT_HOST, DEFAULT_PORT
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.parts import listen_at, reachable
from skerry_cli.home.state import Home, known_config
from skerry_edge.limits import Limits
from skerry_regions.address import Address
from skerry_regions.process.children import ProcessSpec
from skerry_regions.process.pages import is_healthy
from skerry_regions.process.supervisor import Supervised

STOP_SECONDS = 150.0  # it drains what it has started: edges, then nodes, then relays


@contextlib.contextmanager
def control_listener(home: Home) -> Generator[socket.socket]:
    """Yield where the control plane is to listen: as the last time, if that is free. On
    loopback."""
    before = urlsplit(known_config(home).control_url).port
    try:
        listener = listen_at(DEFAULT_HOST, before or DEFAULT_PORT, Limits())
    except CannotStart:
        listener = listen_at(DEFAULT_HOST, 0, Limits())
    with listener:
        yield listener


@contextlib.asynccontextmanager
async def control_plane(home: Home, listener: socket.socket) -> AsyncGenerator[Supervised]:
    """Run it until the block ends; then all that it has started ends too.

    The home's account and token must be written already.
    """
    host, port = reachable(listener)
    address = Address(host=host, port=port)
    command = ["control", "--own", "--listener-fd", str(listener.fileno()), "--lifeline-fd"]
    process = Supervised(
        ProcessSpec(
            id="control",
            command=[sys.executable, "-m", "skerry", *command],
            environ=os.environ | {"SKERRY_HOME": str(home.root)},
            log=home.logs / "control.log",
            descriptors=(listener.fileno(),),
            healthy=lambda: is_healthy(address),
        )
    )
    try:
        yield process
    finally:
        process.retire()  # its socket is ours no longer
        listener.close()
        await process.stop(STOP_SECONDS)
        for path in home.run.glob(f"{home.registry.name}*"):  # no member is in it any more
            path.unlink(missing_ok=True)
