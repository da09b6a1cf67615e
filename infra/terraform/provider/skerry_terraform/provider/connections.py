"""Connections to the control planes of a platform, kept for the next request, for many threads."""

from __future__ import annotations

import contextlib
import http.client
import select
import threading

from skerry_terraform.provider.settings import ControlAddress, ProviderSettings


class ControlConnections:
    """See above. Requests go to one control plane until it does not take them: one leads."""

    def __init__(self, settings: ProviderSettings) -> None:
        self._settings = settings
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self.address = settings.addresses[0]

    def turn_from(self, address: ControlAddress) -> None:
        """Send to the next control plane from now on, unless another thread has turned already."""
        every = self._settings.addresses
        with self._lock:
            if self.address is address:
                self.address = every[(every.index(address) + 1) % len(every)]

    def open(self, at: ControlAddress) -> http.client.HTTPConnection:
        """Return one that is not in use."""
        if (idle := self._idle_connection(at)) is not None:
            return idle
        seconds = self._settings.timeout_seconds
        if at.tls is None:
            return http.client.HTTPConnection(at.host, at.port, timeout=seconds)
        return http.client.HTTPSConnection(at.host, at.port, timeout=seconds, context=at.tls)

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Have it ready for another request."""
        self._idle.append(connection)

    def close(self) -> None:
        """Close those that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def _idle_connection(self, at: ControlAddress) -> http.client.HTTPConnection | None:
        """Return one that the control plane has not closed meanwhile: that would cost a
        try each."""
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                is_there = (connection.host, connection.port) == (at.host, at.port)
                if is_there and not _is_closed_by_peer(connection):
                    return connection
                connection.close()
        return None


def _is_closed_by_peer(idle: http.client.HTTPConnection) -> bool:
    """Return whether there is something to read, where nothing was requested."""
    poll = select.poll()
    poll.register(idle.sock, select.POLLIN)
    return bool(poll.poll(0))
