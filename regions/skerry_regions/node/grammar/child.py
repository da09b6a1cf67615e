"""Where grammars are tried: `python -m skerry_regions.node.grammar.child TOKENIZER …`.

It ends with its standard input, or when a grammar takes more than the kernel lets it have.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from skerry_core.grammar.matcher import Grammar, GrammarCompiler, GrammarError, GrammarKind, lower
from skerry_regions.node.grammar.trial import CPU_SECONDS, MEMORY_BYTES, Verdict, Vocabulary, frame

PAGES = Path("/proc/self/statm")  # sizes in pages: of the address space, resident, …


def main(arguments: list[str]) -> None:
    tokenizer, size, *stops = arguments
    vocabulary = Vocabulary(Path(tokenizer), int(size), tuple(map(int, stops)))
    try:
        compiler = vocabulary.compiler()
    except GrammarError as error:
        return _tell(Verdict(refusal=str(error)))
    _limit()
    _tell(Verdict())
    while (message := _hear(sys.stdin.buffer)) is not None:
        kind, source = msgspec.msgpack.decode(message, type=tuple[GrammarKind, str])
        _allow_cpu()
        _tell(_try(compiler, Grammar(kind, source)))


def _try(compiler: GrammarCompiler, grammar: Grammar) -> Verdict:
    before = _resident()
    try:
        lowered = lower(grammar)
        compiled = compiler.compile(lowered)
    except GrammarError as error:
        return Verdict(refusal=str(error))
    memory = max(0, _resident() - before)
    del compiled  # and not before its memory was looked at
    return Verdict(lowered, memory)


def _limit() -> None:
    """What a grammar may have of memory; and of nothing else, anything."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(ValueError, OSError):  # not every system has each of them
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        if PAGES.exists():
            most = _pages(0) + MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _allow_cpu() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    most = math.ceil(used.ru_utime + used.ru_stime) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


def _resident() -> int:
    return _pages(1) if PAGES.exists() else 0


def _pages(field: int) -> int:
    """A field of `PAGES`, in bytes."""
    return int(PAGES.read_text().split()[field]) * os.sysconf("SC_PAGE_SIZE")


def _hear(pipe: BinaryIO) -> bytes | None:
    head = pipe.read(4)
    return pipe.read(int.from_bytes(head, "little")) if len(head) == 4 else None


def _tell(verdict: Verdict) -> None:
    sys.stdout.buffer.write(frame(msgspec.msgpack.encode(verdict)))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
