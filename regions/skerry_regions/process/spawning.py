"""Starts processes that outlive the one that starts them, with what they inherit."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from skerry_regions.address import LOOPBACK, Address
from skerry_regions.process.log_files import rotate

BACKLOG = 2048  # connections that wait to be accepted


def spawn(
    command: list[str], environ: Mapping[str, str], log: Path, inherited: Sequence[int]
) -> int:
    """Run a command in a session of its own; return its pid. Raises OSError.

    It appends to `log`, and inherits the descriptors under their numbers.
    """
    log.parent.mkdir(mode=0o700, exist_ok=True)
    with contextlib.suppress(OSError):  # a full disk: the old one goes on
        rotate(log)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        *((os.POSIX_SPAWN_DUP2, number, number) for number in inherited),
    ]
    return os.posix_spawn(command[0], command, environ, file_actions=files, setsid=True)


def resolved(host: str) -> str:
    """Return the IP address at which to listen for a host. Blocks; raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return str(found[0][4][0])


def bound(host: str, port: int, *, is_shared: bool = False) -> socket.socket:
    """Return a socket for an edge to listen on, at an IP address. `is_shared`: with an edge
    that has the port already, for a while. Raises OSError."""
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, is_shared)
        listener.bind((host, port))
        # Only now: a port that somebody has is refused, and an heir may share ours.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        listener.close()
        raise
    return listener


class HeldListener:
    """An edge's listening socket, held while it is replaced or started again: callers wait."""

    def __init__(self, listener: socket.socket) -> None:
        self._socket = listener
        name = listener.getsockname()
        self.host, self.port = str(name[0]), int(name[1])

    @property
    def address(self) -> Address:
        return Address(host=self.host, port=self.port)

    @property
    def reached(self) -> Address:
        """Return where this machine reaches it, also behind a wildcard."""
        return Address(host=LOOPBACK.get(self.host, self.host), port=self.port)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def listen(self) -> None:
        """Let callers wait for a process that is to come."""
        with contextlib.suppress(OSError):  # an edge of another home listens there, too
            self._socket.listen(BACKLOG)

    def close(self) -> None:
        self._socket.close()
