"""Work on what strangers wrote, in a process that may be killed: a schema, a grammar, a template.

    parent ── message ──▶ child ── fork ──▶ one message's work ── answer ──▶ parent

The child loads what it needs once (a tokenizer, a template) and forks for each message, so that a
message which takes too much dies alone and at once: the kernel ends its fork after so much
processor time, and refuses it memory. Both work below everything else of the machine (nice 19).
Messages and answers are bytes, with four bytes of length before them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO, NoReturn

START_SECONDS = 60.0  # to load what it needs, on a machine that is busy with other things
WALL_SECONDS = 30.0  # of a message, likewise: it has the least share of the machine
MAX_ANSWER = 16 << 20  # bytes
NICENESS = 19
MEMORY_PAGES = Path("/proc/self/statm")  # sizes in pages: of the address space, resident, …

_LENGTH = struct.Struct("<I")
_READY, _DIED = b"ready", b""


class Exhausted(Exception):
    """A message took more time or memory than it may."""


class ChildUnavailable(Exception):
    """The child does not come up; the message says why."""


class Confined:
    """The parent's end, for any thread: the child starts with the first call, and stays.

    It works on one message at a time; other calls wait. `close` waits for none.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        """`module` is what `python -m` runs, with these arguments; it calls `serve`."""
        self._program = [sys.executable, "-m", module, *arguments]
        self._child: _Child | None = None
        self._turn = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Return the child's, which is the id of its process group; None while there is none."""
        return None if self._child is None else self._child.pid

    def ask(self, message: bytes) -> bytes:
        """Have a message worked on, and return the answer. Blocks.

        Raises `Exhausted`, and `ChildUnavailable` when there can be no child.
        """
        with self._turn:
            child = self._running()
            try:
                child.send(message)
                answer = child.receive(WALL_SECONDS)
            except (OSError, EOFError):
                self.close()
                raise Exhausted from None
        if answer == _DIED:
            raise Exhausted
        return answer

    def start(self) -> None:
        """Start the child, if it does not run. Raises `ChildUnavailable`. Blocks."""
        with self._turn:
            self._running()

    def close(self) -> None:
        """End the child, whatever it does."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _running(self) -> _Child:
        if self._child is not None and self._child.has_ended:  # killed by somebody else
            self.close()
        if self._child is None:
            self._child = _Child(self._program)
            try:
                ready = self._child.receive(START_SECONDS)
            except (OSError, EOFError):
                ready = b"the process that tries it does not start"
            if ready != _READY:
                self.close()
                raise ChildUnavailable(ready.decode("utf-8", "replace"))
        return self._child


class _Child:
    """A running child, and the pipes to it."""

    def __init__(self, program: list[str]) -> None:
        self._process = subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            bufsize=0,
            start_new_session=True,  # its forks end with it
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def send(self, message: bytes) -> None:
        """Send a message. Raises OSError when the child is gone."""
        data = memoryview(_framed(message))
        while data:
            data = data[self._to.write(data) :]

    def receive(self, seconds: float) -> bytes:
        """Receive a message. Raises EOFError when the child ends first, OSError after `seconds`."""
        deadline = time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > MAX_ANSWER:
            raise OSError("an endless answer")
        return self._read(length, deadline)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        with contextlib.suppress(OSError):
            self._to.close()
        self._from.close()
        self._process.wait()

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._from], [], [], left)[0]:
                raise TimeoutError
            piece = os.read(self._from.fileno(), size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


# --- in the child --------------------------------------------------------------------------------


def serve(work: Callable[[bytes], bytes], *, cpu_seconds: float, memory_bytes: int) -> None:
    """Answer messages from standard input with `work`, until it ends.

    A message may take so much processor time, and so much memory beyond what is in use now; an
    exception ends it as well. Call it on the only thread.
    """
    answers = sys.stdout.buffer
    os.nice(NICENESS)
    _limit(memory_bytes)
    _send(answers, _READY)
    while (message := _receive(sys.stdin.buffer)) is not None:
        pid = os.fork()
        if pid == 0:
            _answer(work, message, answers, cpu_seconds)
        _, status = os.waitpid(pid, 0)
        if status:
            _send(answers, _DIED)


@contextlib.contextmanager
def loading(cpu_seconds: float) -> Generator[None]:
    """End the process when what it loads before `serve` takes more processor time."""
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0.0)


def refuse(reason: str) -> None:
    """Send in place of `serve` why there is nothing to serve."""
    _send(sys.stdout.buffer, reason.encode()[:MAX_ANSWER])


def resident_bytes() -> int:
    """Return this process's memory; 0 where the system does not say."""
    return _pages(1) if MEMORY_PAGES.exists() else 0


def _answer(
    work: Callable[[bytes], bytes], message: bytes, answers: BinaryIO, cpu_seconds: float
) -> NoReturn:
    """Do one message's work in a fork, and end it."""
    status = 1
    try:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # SIGPROF ends the process
        answer = work(message)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        _send(answers, answer)
        status = 0
    finally:
        os._exit(status)


def _limit(memory_bytes: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # not every system has each of them
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        if MEMORY_PAGES.exists():
            most = _pages(0) + memory_bytes
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _pages(field: int) -> int:
    """Return a field of `MEMORY_PAGES`, in bytes."""
    return int(MEMORY_PAGES.read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE")


def _receive(pipe: BinaryIO) -> bytes | None:
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    return pipe.read(length)


def _send(pipe: BinaryIO, message: bytes) -> None:
    pipe.write(_framed(message))
    pipe.flush()


def _framed(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message
