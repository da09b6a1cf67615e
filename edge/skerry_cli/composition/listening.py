"""The HTTP listener of a process, and its report to the process that started it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.parts import listen_at, url_of
from skerry_edge.http.server import serve
from skerry_edge.http.tls import Certificate, TLSError
from skerry_edge.limits import Limits
from skerry_regions.prometheus import LabelValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Host, port and certificate that a process listens with."""

    host: str
    port: int  # 0: a free one
    tls: tuple[Path, Path] | None = None  # certificate and key
    descriptor: int | None = None  # of a socket that listens already, instead of host and port


@dataclass(frozen=True, slots=True)
class Front:
    """A listening socket, what is shown at it, and the bounds of those who come."""

    listener: socket.socket
    certificate: Certificate | None
    limits: Limits

    @classmethod
    @contextlib.contextmanager
    def open(cls, where: Where, limits: Limits) -> Generator[Front]:
        """Listen until the block ends: first of all, so that a taken port is reported at once.

        Raises `CannotStart`.
        """
        certificate = None if where.tls is None else open_certificate(*where.tls)
        if where.descriptor is None:
            listener = listen_at(where.host, where.port, limits)
        else:
            listener = socket.socket(fileno=where.descriptor)
            listener.set_inheritable(False)  # what we start must not keep it open
        with listener:
            yield cls(listener, certificate, limits)

    def certificate_ends(self, name: str) -> dict[LabelValues, float]:
        """Return when the certificate ends that is shown here, for metrics."""
        return {} if self.certificate is None else {("tls", name): self.certificate.ends_at}

    def url(self, host: str = "") -> str:
        """Return where callers reach it: at `host`, where one is given."""
        return url_of(self.listener, tls=self.certificate is not None, host=host)

    async def serve(
        self, app: ASGIApp, *, stop: asyncio.Event, ready: Callable[[], None], **more: Any
    ) -> None:
        """Serve until `stop`, then drain. `more` is for `skerry_edge.http.server.serve`."""

        def listening() -> None:
            ready()
            gc.collect()
            gc.freeze()  # what is loaded stays: later collections need not look at it

        await serve(
            app,
            listener=self.listener,
            limits=self.limits,
            ready=listening,
            stop=stop,
            ssl_context=None if self.certificate is None else self.certificate.context,
            **more,
        )


def open_certificate(cert: Path, key: Path) -> Certificate:
    """Raises `CannotStart`."""
    with raised_as(CannotStart, TLSError):
        return Certificate(cert, key)
