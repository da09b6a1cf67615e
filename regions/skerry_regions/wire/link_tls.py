"""Links between machines: TLS 1.3, with certificates at both ends.

OpenSSL encrypts 16 KiB at a time, and lets go of Python's lock meanwhile. Little is done on the
event loop, since to wake a thread takes longer; more than `INLINE_BYTES` and all handshakes on
threads, so that neither KV blocks nor strangers hold up a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

from skerry_regions.wire.link_certificates import LinkCertificates, OpenLink, protocol_of
from skerry_regions.wire.link_key import LinkRefused, Purpose

INLINE_BYTES = 32 << 10  # encrypted or decrypted on the event loop: some 30 microseconds
BATCH_BYTES = 1 << 20  # by one turn of a thread; then they are sent, or delivered
WAITING_BYTES = 4 << 20  # received and not decrypted; then no more is read
UNSENT_BYTES = 4 << 20  # encrypted and not sent; then no more is encrypted
RECORD_BYTES = 16 << 10

HANDSHAKES = ThreadPoolExecutor(1, "link handshakes")
CIPHERS = ThreadPoolExecutor(2, "link ciphers")


class TlsEnd:
    """Either end of a handshake, without I/O: bytes in, bytes out, until `is_proven`."""

    def __init__(
        self,
        certificates: LinkCertificates,
        purpose: Purpose,
        *,
        listens: bool,
        expected: str = "",
    ) -> None:
        """`expected` is the machine that has to be at the other end. Raises LinkRefused."""
        self._certificates = certificates
        self._purpose: Purpose = purpose
        self._expected = expected
        self._listens = listens
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = certificates.context(purpose, listens=listens)
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=listens)
        self.is_silent = listens  # until the other end has greeted
        self.is_proven = False
        self.machine = ""  # at the other end

    def greeting(self) -> bytes:
        return b"" if self._listens else self.receive(b"")[0]

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Return (to send, nothing: what came after the handshake is kept). Raises LinkRefused."""
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
            if self._tls.selected_alpn_protocol() != protocol_of(self._purpose):
                raise LinkRefused(f"the other end does not speak {protocol_of(self._purpose)}")
            self.machine = self._certificates.admit(
                self._tls.getpeercert(),
                self._purpose,
                is_caller=self._listens,
                expected=self._expected,
            )
        except ssl.SSLWantReadError:
            answer = self._outgoing.read()
            self.is_silent = self.is_silent and not answer
            return answer, b""
        except ssl.SSLError as error:
            raise LinkRefused(tls_reason(error), self._outgoing.read()) from None
        self.is_proven = True
        return self._outgoing.read(), b""

    def session(self, link: OpenLink) -> tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]:
        """Return what encrypts for a connection that a thread waits for, what came and what is to
        be sent. `link` ends when its machine is shut out."""
        self._certificates.opened(self.machine, link)
        return self._tls, self._incoming, self._outgoing

    def carry(self, inner: asyncio.Protocol) -> TlsLink:
        """Return what goes on with the connection for a protocol."""
        link = TlsLink(self._tls, self._incoming, self._outgoing, inner)
        self._certificates.opened(self.machine, link)
        return link


@dataclass(frozen=True, slots=True)
class _Turn:
    """What came of encrypting and decrypting."""

    encrypted: bytes
    decrypted: bytes
    is_over: bool  # nothing more comes, or can be read


class TlsLink(asyncio.Protocol, asyncio.Transport):
    """A connection after its handshake: a protocol to its socket, a transport to what it carries.

    One turn at a time uses the TLS object, on the event loop or on a thread.
    """

    def __init__(
        self,
        tls: ssl.SSLObject,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        inner: asyncio.Protocol,
    ) -> None:
        asyncio.Transport.__init__(self)
        self._tls, self._incoming, self._outgoing = tls, incoming, outgoing
        self._inner = inner
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport | None = None
        self._received: deque[bytes] = deque()
        self._unsent: deque[Any] = deque()
        self._num_received = self._num_unsent = 0  # bytes
        self._in_turn = self._is_full = self._is_behind = False
        self._is_closing = self._is_lost = False
        self._error: Exception | None = None

    # --- to the socket ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self._socket.set_write_buffer_limits(UNSENT_BYTES)
        self._inner.connection_made(self)
        self._received.append(b"")  # more may have come with the handshake
        self._work()

    def data_received(self, data: bytes) -> None:
        self._received.append(data)
        self._num_received += len(data)
        if self._num_received > WAITING_BYTES and self._socket is not None:
            self._is_behind = True
            self._socket.pause_reading()
        self._work()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._work()

    def connection_lost(self, exc: Exception | None) -> None:
        self._socket, self._error = None, exc
        self._drop_unsent()
        self._work()

    # --- to what it carries ----------------------------------------------------------------------

    def write(self, data: Any) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._socket is None or self._is_closing:
            return
        for data in list_of_data:
            self._unsent.append(data)
            self._num_unsent += len(data)
        self._work()

    def close(self) -> None:
        """Close once all is sent."""
        self._is_closing = True
        self._work()

    def is_closing(self) -> bool:
        return self._is_closing or self._socket is None

    def abort(self) -> None:
        self._is_closing = True
        self._drop_unsent()
        if self._socket is not None:
            self._socket.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    # --- turns -----------------------------------------------------------------------------------

    def _work(self) -> None:
        """Take turns until nothing waits; not called into itself by what a turn delivers."""
        while not self._in_turn and (self._received or (self._unsent and not self._is_full)):
            self._in_turn = True
            received, self._num_received = _taken(self._received, self._num_received)
            unsent: list[Any] = []
            if not self._is_full:
                unsent, self._num_unsent = _taken(self._unsent, self._num_unsent)
            if sum(map(len, received)) + sum(map(len, unsent)) > INLINE_BYTES:
                turn = CIPHERS.submit(self._turn, received, unsent)
                turn.add_done_callback(self._turned)
                return
            self._settle(self._turn(received, unsent))
        if not self._in_turn:
            self._end()

    def _turned(self, turn: Future[_Turn]) -> None:
        """Go on after a turn on a thread; called there."""

        def settle() -> None:
            self._settle(turn.result())
            self._work()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(settle)

    def _turn(self, received: list[bytes], unsent: list[Any]) -> _Turn:
        """Decrypt and encrypt; on any thread."""
        is_over, decrypted = False, []
        for data in received:
            self._incoming.write(data)
        try:
            while received and (data := self._tls.read(RECORD_BYTES)):
                decrypted.append(data)
            is_over = bool(received)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # an alert, or bytes that were changed on the way
            is_over = True
        try:
            for data in unsent:
                view = memoryview(data).cast("B")
                while view:
                    view = view[self._tls.write(view) :]
        except ssl.SSLError:
            is_over = True
        return _Turn(self._outgoing.read(), b"".join(decrypted), is_over)

    def _settle(self, turn: _Turn) -> None:
        """Send and deliver what a turn has made."""
        try:
            if turn.encrypted and self._socket is not None:
                self._socket.write(turn.encrypted)
            if turn.decrypted and not self._is_closing:
                self._inner.data_received(turn.decrypted)
        except BaseException:
            self.abort()
            raise
        finally:
            self._in_turn = False
        if self._socket is not None:
            if turn.is_over:
                self._socket.close()
            elif self._is_behind and self._num_received <= WAITING_BYTES:
                self._is_behind = False
                self._socket.resume_reading()

    def _end(self) -> None:
        """Close or report the loss, now that nothing waits."""
        if self._socket is None:
            if not self._is_lost:
                self._is_lost = True
                self._inner.connection_lost(self._error)
        elif self._is_closing and not self._unsent and not self._socket.is_closing():
            with contextlib.suppress(ssl.SSLError):  # the other end need not answer
                self._tls.unwrap()
            self._socket.write(self._outgoing.read())
            self._socket.close()

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._num_unsent = 0


def _taken(waiting: deque[Any], num_bytes: int) -> tuple[list[Any], int]:
    """Take a batch off the front; return it, and the bytes that are left."""
    batch, size = [], 0
    while waiting and size < BATCH_BYTES:
        batch.append(waiting.popleft())
        size += len(batch[-1])
    return batch, num_bytes - size


def tls_reason(error: ssl.SSLError) -> str:
    """Return what went wrong in a handshake, in OpenSSL's words."""
    verify = getattr(error, "verify_message", "")
    return f"TLS: {verify or (error.reason or str(error)).replace('_', ' ').lower()}"
