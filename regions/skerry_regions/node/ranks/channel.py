"""The channel between two ranks: framed messages over a stream.

    u32   kind: a message, or what is reported until the first one
    u32   number of parts, at most MAX_PARTS
    u64   bytes of each part, at most MAX_BYTES together
    parts

Little-endian. A thread receives ahead, at most AHEAD messages, so that the other end need not wait
until this one has time for it, and so that its end is noticed whatever this one does meanwhile.
Another sends a frame of nothing every PULSE_SECONDS: a process that is stopped, or whose machine is
gone without a word, is one from which nothing comes for `silence_seconds`.
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Final

from skerry_core.ranks import Part, RankLost
from skerry_regions.node.ranks.stream import RankStream

MAX_PARTS = 64
MAX_BYTES = 1 << 30
AHEAD = 16  # messages
BUFFER_BYTES = 4 << 20  # that the system is to hold in between, each way
PULSE_SECONDS = 1.0
SILENCE_SECONDS = 30.0  # no less than Python may keep another thread waiting, to load a library

_HEAD = struct.Struct("<II")
_LENGTH = struct.Struct("<Q")
_MESSAGE: Final = 1
_PROGRESS: Final = 2
_FAILED: Final = 3
_PULSE: Final = 4
_MAX_TEXT = 4096  # bytes of what is reported
_END = "the connection has ended"

Progress = Callable[[str, float], None]


class SocketChannel:
    """`RankChannel` over a connected stream, which it owns.

    `name` is what messages call the rank at the other end; `progress` is called with what that rank
    reports, and `ended` when the connection ends before `close`, both on the thread that receives.
    What is reported may be from any thread.
    """

    def __init__(
        self,
        connection: RankStream,
        name: str,
        *,
        progress: Progress = lambda what, share: None,
        ended: Callable[[RankLost], None] = lambda error: None,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._stream = connection
        self._name = name
        self._progress = progress
        self._ended = ended
        self._silence_seconds = silence_seconds
        self._is_closed = False
        self._over = threading.Event()  # nothing is sent or received any more
        self._sending = threading.Lock()  # a frame at a time
        self._num_received = 0  # pieces of frames
        self._is_waiting = False  # for the next one
        self._silence: TimeoutError | None = None
        self._received = queue.Queue[Sequence[memoryview] | RankLost](AHEAD)
        if isinstance(connection, socket.socket) and connection.family == socket.AF_UNIX:
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                connection.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self._reader = threading.Thread(target=self._receive_ahead, name=name, daemon=True)
        self._reader.start()
        threading.Thread(target=self._beat, name=f"{name} lives", daemon=True).start()

    def send(self, *parts: Part) -> None:
        """Send a message; see `RankChannel`."""
        self._send(_MESSAGE, parts)

    def receive(self) -> Sequence[memoryview]:
        """Wait for a message; see `RankChannel`."""
        received = self._received.get()
        if isinstance(received, RankLost):
            self._received.put(received)  # so it stays
            raise received
        return received

    def report(self, what: str, share: float) -> None:
        """Report progress to the other end's `progress`; of who is gone, nothing."""
        with contextlib.suppress(RankLost):
            self._send(_PROGRESS, (struct.pack("<d", share), what.encode()[:_MAX_TEXT]))

    def fail(self, why: str) -> None:
        """Report why this rank cannot go on: the other end's `receive` raises it."""
        with contextlib.suppress(RankLost):
            self._send(_FAILED, (why.encode()[:_MAX_TEXT],))

    def close(self) -> None:
        self._is_closed = True
        self._over.set()
        self._shut_down()
        self._stream.close()
        with contextlib.suppress(queue.Empty):  # the thread may wait for room
            while True:
                self._received.get_nowait()
        with contextlib.suppress(queue.Full):  # who receives may wait, and the thread be through
            self._received.put_nowait(RankLost(f"the connection to {self._name} is closed"))

    def _send(self, kind: int, parts: Sequence[Part]) -> None:
        views = [memoryview(part).cast("B") for part in parts]
        lengths = [view.nbytes for view in views]
        if not 1 <= len(views) <= MAX_PARTS or sum(lengths) > MAX_BYTES:
            raise ValueError(f"a message has 1 to {MAX_PARTS} parts of {MAX_BYTES} bytes at most")
        try:
            with self._sending:
                self._write(kind, views)
        except OSError as error:
            raise self._lost(error) from None

    def _write(self, kind: int, views: Sequence[memoryview]) -> None:
        lengths = b"".join(_LENGTH.pack(view.nbytes) for view in views)
        head = memoryview(_HEAD.pack(kind, len(views)) + lengths)
        waiting = [head, *(view for view in views if view.nbytes)]
        while waiting:
            sent = self._stream.sendmsg(waiting)
            while waiting and sent >= waiting[0].nbytes:
                sent -= waiting.pop(0).nbytes
            if waiting:
                waiting[0] = waiting[0][sent:]

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    # --- on the thread that shows, and looks for, signs of life ----------------------------------

    def _beat(self) -> None:
        """End the connection once nothing comes. Time in which this process was stopped too is one
        look."""
        looks = received = 0
        while not self._over.wait(PULSE_SECONDS):
            with contextlib.suppress(OSError, ValueError):  # closed meanwhile
                self._show_life()
            is_silent = self._is_waiting and self._num_received == received
            looks, received = looks + 1 if is_silent else 0, self._num_received
            if looks * PULSE_SECONDS >= self._silence_seconds:
                self._silence = TimeoutError(f"nothing came for {self._silence_seconds:g} seconds")
                self._shut_down()
                return

    def _show_life(self) -> None:
        """Send a pulse, unless other frames are on their way."""
        if self._sending.acquire(blocking=False):
            try:
                room = select.poll()
                room.register(self._stream, select.POLLOUT)
                if room.poll(0):
                    self._write(_PULSE, (memoryview(b""),))
            finally:
                self._sending.release()

    # --- on the thread that receives -------------------------------------------------------------

    def _receive_ahead(self) -> None:
        try:
            while True:
                kind, parts = self._read()
                if kind == _PROGRESS:
                    self._progress(str(parts[1], "utf-8", "replace"), _share(parts[0]))
                elif kind == _FAILED:
                    raise RankLost(str(parts[0], "utf-8", "replace"))
                elif kind == _MESSAGE:
                    self._received.put(parts)
        except ConnectionError:
            lost = self._lost(EOFError(_END))
        except (OSError, EOFError, ValueError) as error:
            lost = self._lost(error)
        except RankLost as error:
            lost = error
        self._over.set()
        self._shut_down()  # over TCP one more message would seem to be sent
        if not self._is_closed:
            self._ended(lost)
        self._received.put(lost)

    def _read(self) -> tuple[int, list[memoryview]]:
        """Raises OSError, EOFError, and ValueError for what is no frame of ours."""
        kind, count = _HEAD.unpack(self._exactly(_HEAD.size))
        if not _MESSAGE <= kind <= _PULSE or not 1 <= count <= MAX_PARTS:
            raise ValueError("what came is no message between ranks")
        heads = self._exactly(_LENGTH.size * count)
        lengths = [length for (length,) in _LENGTH.iter_unpack(heads)]
        if sum(lengths) > (MAX_BYTES if kind == _MESSAGE else 2 * _MAX_TEXT):
            raise ValueError(f"a message of {sum(lengths)} bytes came")
        if kind == _PROGRESS and (count != 2 or lengths[0] != 8):
            raise ValueError("what came is no progress")
        return kind, [self._exactly(length) for length in lengths]

    def _exactly(self, count: int) -> memoryview:
        received = memoryview(bytearray(count))
        done = 0
        while done < count:
            self._is_waiting = True
            number = self._stream.recv_into(received[done:])
            self._is_waiting = False
            if not number:
                raise EOFError(_END)
            self._num_received += 1
            done += number
        return received

    def _lost(self, error: Exception) -> RankLost:
        return RankLost(f"{self._name} is lost: {self._silence or error}")


def _share(packed: memoryview) -> float:
    (share,) = struct.unpack("<d", packed)
    return min(1.0, max(0.0, float(share)))
