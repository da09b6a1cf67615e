"""Addresses of nodes: `unix:/path/to.sock` on one host, `tcp:10.0.0.7:9000` between hosts."""

from __future__ import annotations

import asyncio
import ipaddress
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

ProtocolT = TypeVar("ProtocolT", bound=asyncio.BaseProtocol)
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where a wildcard can be reached from here


class AddressError(ValueError):
    """Not an address, or one that must not be listened on."""


@dataclass(frozen=True, slots=True)
class Address:
    """A unix socket's path, or a host and a port; parsed, not resolved."""

    path: str = ""
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises AddressError saying what is wrong."""
        scheme, _, rest = text.partition(":")
        if scheme == "unix" and rest:
            return cls(path=rest)
        host, _, port = rest.rpartition(":")
        if scheme == "tcp" and host and port.isdecimal() and int(port) < 1 << 16:
            return cls(host=host.strip("[]"), port=int(port))
        raise AddressError(f"{text!r} is neither unix:/path nor tcp:host:port")

    def advertised(self, host: str) -> Address:
        """Return it as others reach it: at `host`, where one is given and it is no unix socket."""
        return replace(self, host=host) if host and not self.path else self

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp:{host}:{self.port}"

    async def connect(self, protocol: Callable[[], ProtocolT]) -> ProtocolT:
        """Open a connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        if self.path:
            return (await loop.create_unix_connection(protocol, self.path))[1]
        return (await loop.create_connection(protocol, self.host, self.port))[1]

    async def listen(
        self, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.AbstractServer, Address]:
        """Listen, and say where: port 0 picks a free one. Raises OSError or AddressError.

        Unix sockets are their owner's only; wildcard hosts are refused.
        """
        loop = asyncio.get_running_loop()
        if self.path:
            with _private_socket(self.path):
                server: asyncio.Server = await loop.create_unix_server(protocol, self.path)
            return server, self
        if _is_wildcard(self.host):
            raise AddressError(f"{self}: give the one address to listen on, not a wildcard")
        server = await loop.create_server(protocol, self.host, self.port)
        return server, Address(host=self.host, port=server.sockets[0].getsockname()[1])


@contextmanager
def _private_socket(path: str) -> Generator[None]:
    """Make way for a socket that only its owner may connect to."""
    Path(path).unlink(missing_ok=True)
    previous = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(previous)


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return host in ("", "*")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach it; of names, `localhost` alone counts."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
