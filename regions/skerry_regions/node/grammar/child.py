"""Where grammars are tried: `python -m skerry_regions.node.grammar.child TOKENIZER …`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from skerry_core.grammar.compiler import GrammarCompiler
from skerry_core.grammar.lowering import GrammarKind, lower
from skerry_core.grammar.matcher import GrammarError
from skerry_regions.node.grammar.trial import (
    CPU_SECONDS,
    MEMORY_BYTES,
    GrammarVocabulary,
    TrialResult,
)
from skerry_regions.process import confined
from skerry_regions.wire.output_marks import CallMarkSpec


def main(arguments: list[str]) -> None:
    tokenizer, size, *stops = arguments
    vocabulary = GrammarVocabulary(Path(tokenizer), int(size), tuple(map(int, stops)))
    try:
        compiler = vocabulary.compiler()
    except GrammarError as error:
        return confined.refuse(str(error))

    def work(message: bytes) -> bytes:
        asked = msgspec.msgpack.decode(message, type=tuple[GrammarKind, str, CallMarkSpec | None])
        return msgspec.msgpack.encode(_try(compiler, *asked))

    confined.serve(work, cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)


def _try(
    compiler: GrammarCompiler, kind: GrammarKind, source: str, calls: CallMarkSpec | None
) -> TrialResult:
    before = confined.resident_bytes()
    try:
        lowered = lower(kind, source)
        compiled = compiler.compile(lowered, calls)
    except GrammarError as error:
        return TrialResult(refusal=str(error))
    memory = max(0, confined.resident_bytes() - before)
    return TrialResult(lowered, memory, compiled.ends)


if __name__ == "__main__":
    main(sys.argv[1:])
