"""Starts processes that outlive the one that starts them, with what they inherit."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from skerry_regions.process.log_files import rotate


def spawn(
    command: Sequence[str], environ: Mapping[str, str], log: Path, inherited: Sequence[int]
) -> int:
    """Run the `skerry` command in a session of its own; return its pid. Raises OSError.

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
    arguments = [sys.executable, "-m", "skerry", *command]
    return os.posix_spawn(sys.executable, arguments, environ, file_actions=files, setsid=True)


def bound(host: str, port: int) -> socket.socket:
    """Return a socket for an edge to listen on. An old and a new one may share its port for a
    while. Raises OSError."""
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
