"""Certificates of machines, for tests of what goes between them."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.regions.toy_nodes import until

from skerry_regions.address import Address
from skerry_regions.control.machines.authority import Authority, read_request
from skerry_regions.control.machines.folder import certificate_request, kept_key
from skerry_regions.private_files import replace_file
from skerry_regions.wire.link_auth import LinkCredentials, connect, listen
from skerry_regions.wire.link_certificates import LinkCertificates
from skerry_regions.wire.link_files import LinkFiles
from skerry_regions.wire.link_key import LinkKey, LinkRefused, Purpose

LOOPBACK = Address(host="127.0.0.1", port=0)
KEY = LinkCredentials(LinkKey(b"k" * 32))


class Machines:
    """Machines of one authority, each with a folder of its own."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.authority = Authority.open(folder / "authority.pem", clock)

    def issue(self, name: str, *runs: str) -> Path:
        """Write a certificate, the first one or another, and return the machine's folder."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        request = read_request(certificate_request(kept_key(folder / "key.pem")))
        signed = self.authority.sign(request, name, *runs)
        replace_file(folder / "authority.pem", self.authority.pem.encode())
        replace_file(folder / "certificate.pem", signed.pem.encode())
        return folder

    def of(self, name: str, *runs: str) -> LinkCredentials:
        """What a process of the machine `name` has."""
        files = LinkFiles.joined(self.issue(name, *runs))
        return LinkCredentials(certificates=LinkCertificates(files))

    def certify(self, folder: Path, names: str = "IP:127.0.0.1") -> Path:
        """Write what NATS servers show, by the commands of docs/operations.md."""
        folder.mkdir(exist_ok=True)
        made = folder / "new"
        request = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt",
                   "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{made}.key",
                   "-subj", "/CN=nats-1", "-out", f"{made}.csr",
                   "-addext", f"subjectAltName={names}",
                   "-addext", "extendedKeyUsage=serverAuth,clientAuth"]  # fmt: skip
        subprocess.run(request, check=True, capture_output=True)
        sign = ["openssl", "x509", "-req", "-in", f"{made}.csr", "-copy_extensions", "copyall",
                "-CA", str(self.folder / "authority.pem"), "-days", "365",
                "-out", f"{made}.crt"]  # fmt: skip
        subprocess.run(sign, check=True, capture_output=True)
        replace_file(folder / "ca.crt", self.authority.pem.encode())
        for name in ("crt", "key"):
            replace_file(folder / f"tls.{name}", Path(f"{made}.{name}").read_bytes())
        return folder

    def revoke(self, at: str, *names: str) -> None:
        """Have the machine `at` know that others were revoked."""
        (self.folder / at / "revoked").write_text("".join(f"{name}\n" for name in names))


class Tap:
    """A relay that keeps all bytes that pass it, both ways."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.num_connections = 0

    @asynccontextmanager
    async def before(self, target: Address) -> AsyncGenerator[Address]:
        tasks, writers = set[asyncio.Task[None]](), set[asyncio.StreamWriter]()

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    self.bytes += data
                    writer.write(data)
                    await writer.drain()
            writer.close()

        async def serve(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
            self.num_connections += 1
            far, onward = await asyncio.open_connection(target.host, target.port)
            writers.update((back, onward))
            for way in (pump(near, onward), pump(far, back)):
                tasks.add(asyncio.create_task(way))

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield Address(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for writer in writers:
                writer.transport.abort()
            await asyncio.sleep(0)


class Echo(asyncio.Protocol):
    """Sends back what it hears."""

    def __init__(self) -> None:
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class Caller(asyncio.Protocol):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class Listening:
    """An echo behind a listener, and what it was asked."""

    def __init__(self, credentials: LinkCredentials, purpose: Purpose = "streams") -> None:
        self.credentials = credentials
        self.purpose: Purpose = purpose
        self.made: list[Echo] = []

    def _echo(self) -> Echo:
        self.made.append(Echo())
        return self.made[-1]

    async def __aenter__(self) -> Address:
        self._server, bound = await listen(LOOPBACK, self._echo, self.credentials, self.purpose)
        return bound

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for echo in self.opened:
            echo.transport.abort()

    @property
    def opened(self) -> list[Echo]:
        return [echo for echo in self.made if hasattr(echo, "transport")]


async def refusal(at: Address, credentials: LinkCredentials, purpose: Purpose) -> str:
    """Why a link is refused, as far as its caller hears; fails when it stays open."""
    try:
        link = await connect(at, Caller, credentials, purpose)
    except LinkRefused as error:
        return str(error)
    link.transport.write(b"is anybody there?")
    await until(lambda: link.is_lost or bool(link.heard))
    assert link.is_lost, "it is open"
    return "closed"


def openssl(port: int, *arguments: str, seconds: float = 0.0) -> str:
    """What OpenSSL's own client says of a connection that it keeps for so long."""
    client = subprocess.Popen(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    time.sleep(seconds)
    return client.communicate(b"", timeout=30)[0].decode()
