"""Checks that Ray cannot be reached from where it should not.

It listens on all interfaces whatever address it is given, and runs what whoever holds its token
sends, so it has to have a network namespace of its own, such as a pod's.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path

FIRST_PIDS = "pid:[4026531836]"  # the machine's own namespace of processes: the same in each kernel
WILDCARDS = ("00000000", "0" * 32)
LISTENING = "0A"
RAYS = (b"/ray/core/src/", b"ray::")  # how the command lines of its processes begin, or nearly
AUTH_VARIABLE = "RAY_AUTH_MODE"


class Exposed(Exception):
    """Ray is not to be used as it is; the message says why and what to do."""


def check_address(host: str) -> None:
    """Raises Exposed unless it is a private IP address."""
    try:
        is_private = ipaddress.ip_address(host).is_private
    except ValueError:
        raise Exposed(f"{host!r} is no IP address") from None
    if not is_private or ipaddress.ip_address(host).is_unspecified:
        raise Exposed(f"Ray at {host} would be open to the internet: give it a private address")


def check_listeners(proc: Path = Path("/proc")) -> None:
    """Raises Exposed where a process of Ray's listens on all interfaces of the machine itself."""
    if _has_namespace(proc):
        return
    inodes = dict(_wildcards(proc))
    for process in proc.iterdir():
        if process.name.isdecimal() and (port := _port_of(process, inodes)) is not None:
            raise Exposed(
                f"Ray's process {process.name} listens on all interfaces of this machine (port "
                f"{port}): run Ray in a network namespace of its own, such as a pod"
            )


def _has_namespace(proc: Path) -> bool:
    """Return whether our network is not that of the machine, which its first process has."""
    if os.readlink(proc / "self/ns/pid") != FIRST_PIDS:
        return True  # a container
    return _interfaces(proc / "self") != _interfaces(proc / "1")


def _interfaces(process: Path) -> set[str]:
    lines = (process / "net/dev").read_text().splitlines()[2:]
    return {line.partition(":")[0].strip() for line in lines}


def _wildcards(proc: Path) -> Iterator[tuple[str, int]]:
    """Yield inode and port of sockets that listen on all interfaces."""
    for name in ("tcp", "tcp6"):
        try:
            lines = (proc / "self/net" / name).read_text().splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for fields in map(str.split, lines):
            host, _, port = fields[1].partition(":")
            if fields[3] == LISTENING and host in WILDCARDS:
                yield fields[9], int(port, 16)


def _port_of(process: Path, inodes: dict[str, int]) -> int | None:
    """Return one of these at which a process of Ray's listens; None of another's, or of none."""
    try:
        line = (process / "cmdline").read_bytes()[:4096]
        if not any(each in line for each in RAYS):
            return None
        for descriptor in (process / "fd").iterdir():
            inode = os.readlink(descriptor).removeprefix("socket:[").removesuffix("]")
            if inode in inodes:
                return inodes[inode]
    except OSError:  # gone, or not ours
        pass
    return None
