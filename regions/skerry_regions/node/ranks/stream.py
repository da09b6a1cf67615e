"""Streams of bytes between two ranks: a socket, or one under TLS, and the proof that begins it.

TLS has one state for both ways. Who sends and who receives use it in turn, under a lock that
neither holds while it waits for the socket, so that both ends may send at once more than there is
room for in between. What the protocol itself has to answer goes out with what is sent next.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from skerry_regions.wire.link_key import ConnectingEnd, LinkRefused, ListeningEnd
from skerry_regions.wire.link_tls import RECORD_BYTES, TlsEnd, tls_reason

BATCH_BYTES = 64 << 10  # encrypted at a time, then sent
_RECEIVED_BYTES = 256 << 10  # of what is encrypted, at most, by one call


class RankStream(Protocol):
    """What a channel needs of a connection; `socket.socket` has it. One thread sends and one
    receives; any may shut it down."""

    def sendmsg(self, buffers: Sequence[memoryview], /) -> int:
        """Send some of the bytes, at least one; return how many. Raises OSError."""
        ...

    def recv_into(self, buffer: memoryview, /) -> int:
        """Wait for bytes; return how many came, 0 at the end. Raises OSError."""
        ...

    def shutdown(self, how: int, /) -> None: ...

    def close(self) -> None: ...

    def fileno(self) -> int: ...


class TlsStream:
    """`RankStream` over TLS, on a connection that it owns."""

    def __init__(self, connection: socket.socket, end: TlsEnd) -> None:
        """`end` has proven both ends over this connection."""
        self._socket = connection
        self._lock = threading.Lock()
        tls, self._incoming, self._outgoing = end.session(self)
        self._tls: Any = tls  # its annotations know no memoryview
        self._received = memoryview(bytearray(_RECEIVED_BYTES))

    def sendmsg(self, buffers: Sequence[memoryview], /) -> int:
        some, room = list[memoryview](), BATCH_BYTES
        for each in buffers:
            some.append(each[:room])
            room -= some[-1].nbytes
            if not room:
                break
        data = memoryview(b"".join(some) if len(some) > 1 else some[0])  # few records
        with self._lock:
            try:
                for start in range(0, data.nbytes, RECORD_BYTES):
                    self._tls.write(data[start : start + RECORD_BYTES])
            except ssl.SSLError as error:
                raise OSError(tls_reason(error)) from None
            encrypted = self._outgoing.read()
        self._socket.sendall(encrypted)
        return data.nbytes

    def recv_into(self, buffer: memoryview, /) -> int:
        while True:
            with self._lock:
                try:
                    count: int = self._tls.read(buffer.nbytes, buffer)
                    return count
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    return 0
                except ssl.SSLError as error:
                    raise OSError(tls_reason(error)) from None
            received = self._socket.recv_into(self._received)
            if not received:
                return 0
            with self._lock:
                self._incoming.write(self._received[:received])

    def shutdown(self, how: int, /) -> None:
        self._socket.shutdown(how)

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def abort(self) -> None:
        """End it: its machine is shut out."""
        with contextlib.suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)


def prove(
    connection: socket.socket, own: ConnectingEnd | ListeningEnd | TlsEnd, seconds: float
) -> RankStream:
    """Prove who is at both ends of a TCP connection, on the thread that calls; return what carries
    bytes from there on.

    Raises OSError; LinkRefused, which is one, when a proof is missing, wrong or late. The
    connection stays the caller's to close then.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    deadline = time.monotonic() + seconds
    # What follows a proof by the key is not for this: it is read to the byte.
    at_once = RECORD_BYTES if isinstance(own, TlsEnd) else 1
    connection.settimeout(seconds)
    connection.sendall(own.greeting())
    while not own.is_proven:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            received = connection.recv(at_once)
        except TimeoutError:
            raise LinkRefused(f"the other end did not prove itself in {seconds:g} s") from None
        if not received:
            raise LinkRefused("the other end closed the connection without a proof")
        try:
            answer, _ = own.receive(received)
        except LinkRefused as error:
            with contextlib.suppress(OSError):
                connection.sendall(error.last_word)
            raise
        connection.sendall(answer)
    connection.settimeout(None)
    return TlsStream(connection, own) if isinstance(own, TlsEnd) else connection
