"""Compiles grammars in a process that may be killed, before anybody compiles them in earnest.

A hostile grammar can take minutes and gigabytes to compile. Here it gets `CPU_SECONDS` and
`MEMORY_BYTES`, in a process of its own (`grammar_child`); only what passes is compiled again beside
the engine.

    parent ── [kind, source] ──▶ child     msgpack, with four bytes of length before each message
    parent ◀── Verdict ───────── child
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from skerry_core.grammar.matcher import Grammar, GrammarCompiler, GrammarError

CPU_SECONDS = 1  # of a grammar; the kernel counts whole ones, so it may have one more
WALL_SECONDS = 10.0  # of a grammar, on a machine that is busy with other things
START_SECONDS = 60.0  # to load the tokenizer
MEMORY_BYTES = 128 << 20  # of a grammar, beyond what the tokenizer takes
MAX_MESSAGE = 16 << 20  # bytes

_LENGTH = struct.Struct("<I")


class Verdict(msgspec.Struct, frozen=True):
    """What a trial found: the lowered grammar and its price, or why there is none."""

    lowered: str = ""
    memory: int = 0  # bytes that it takes when compiled, roughly
    refusal: str | None = None


TOO_MUCH = Verdict(refusal="the grammar takes too much time or memory to compile")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What grammars are compiled for."""

    tokenizer: Path  # tokenizer.json
    size: int  # of the logits
    stop_token_ids: tuple[int, ...]

    def compiler(self) -> GrammarCompiler:
        """Raises GrammarError when llguidance does not know the tokenizer."""
        return GrammarCompiler(
            self.tokenizer, vocab_size=self.size, stop_token_ids=self.stop_token_ids
        )


class Trial:
    """The parent's end. One call at a time; the process starts with the first, and stays."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._child: _Child | None = None

    def run(self, grammar: Grammar) -> Verdict:
        """Compile a grammar in the child; one that dies of it is replaced. Blocks.

        Raises GrammarError when there can be no child.
        """
        child = self._running()
        try:
            child.tell(msgspec.msgpack.encode((grammar.kind, grammar.source)))
            return child.hear(WALL_SECONDS)
        except (OSError, EOFError):
            self.close()
            return TOO_MUCH

    def close(self) -> None:
        """End the process, whatever it does."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _running(self) -> _Child:
        if self._child is None:
            self._child = _Child(self._vocabulary)
            try:
                ready = self._child.hear(START_SECONDS)
            except (OSError, EOFError):
                ready = Verdict(refusal="the process that tries grammars does not start")
            if ready.refusal is not None:
                self.close()
                raise GrammarError(ready.refusal)
        return self._child


class _Child:
    """A running `grammar_child`, and the pipes to it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        stops = map(str, vocabulary.stop_token_ids)
        program = [sys.executable, "-m", "skerry_regions.node.grammar.child"]
        self._process = subprocess.Popen(
            [*program, str(vocabulary.tokenizer), str(vocabulary.size), *stops],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout

    def tell(self, message: bytes) -> None:
        """Raises OSError when the child is gone."""
        data = memoryview(frame(message))
        while data:
            data = data[self._to.write(data) :]

    def hear(self, seconds: float) -> Verdict:
        """The next message. Raises EOFError when the child ends first, OSError after `seconds`."""
        deadline = time.monotonic() + seconds
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, deadline))
        if length > MAX_MESSAGE:
            raise OSError("an endless message")
        try:
            return msgspec.msgpack.decode(self._read(length, deadline), type=Verdict)
        except msgspec.MsgspecError as error:
            raise OSError("not a verdict") from error

    def kill(self) -> None:
        self._process.kill()
        with contextlib.suppress(OSError):
            self._to.close()
        self._from.close()
        self._process.wait()

    def _read(self, size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._from], [], [], left)[0]:
                raise TimeoutError
            piece = os.read(self._from.fileno(), size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


def frame(message: bytes) -> bytes:
    """A message with its length before it."""
    return _LENGTH.pack(len(message)) + message
