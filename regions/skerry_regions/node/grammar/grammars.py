"""The grammars of one served model: tried, compiled, kept, all away from the event loop.

Submit.grammar ──Trial──▶ lowered ──compile──▶ CompiledGrammar ──▶ Matcher for the engine
                 process          one thread                       per stream
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from skerry.errors import InvalidInput, Overloaded
from skerry_core.engine.engine import Engine
from skerry_core.grammar.matcher import (
    CompiledGrammar,
    Grammar,
    GrammarCompiler,
    GrammarError,
    Matcher,
)
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.node.grammar.trial import Trial, Vocabulary

MAX_WAITING = 64  # grammars to be compiled; each takes milliseconds, a hostile one seconds
MAX_KEPT = 512
MAX_KEPT_BYTES = 256 << 20
LEAST_BYTES = 64 << 10  # what a grammar counts at least
RETRY_SECONDS = 2.0

Key = tuple[bytes, Grammar]  # a tenant's cache key: nobody can time another's grammars


@dataclass(frozen=True, slots=True)
class _Entry:
    """A grammar as it is kept: compiled, or why it is refused."""

    compiled: CompiledGrammar | None
    refusal: str
    bytes: int


def grammars_of(files: ModelFiles, engine: Engine) -> Grammars:
    """Grammars for a model and the engine that runs it."""
    size = engine.runner.model.vocab_size
    return Grammars(Vocabulary(files.tokenizer, size, files.stop_token_ids))


class Grammars:
    """Gives streams their matchers. Lives on an event loop; `close` it there."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._trial = Trial(vocabulary)
        self._compiler: GrammarCompiler | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="skerry-grammars")
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._compiling: dict[Key, asyncio.Future[_Entry]] = {}

    async def matcher(
        self, grammar: Grammar, *, cache_key: bytes, output_ids: Sequence[int]
    ) -> Matcher:
        """A matcher that has taken a transcript.

        Raises `InvalidInput` for a grammar that cannot be used, `Overloaded` when too many wait.
        """
        entry = await self._entry((cache_key, grammar))
        if entry.compiled is None:
            raise InvalidInput(f"Bad input: {entry.refusal}")
        if not output_ids:
            return entry.compiled.matcher()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, entry.compiled.matcher, output_ids)
        except GrammarError as error:
            raise InvalidInput(f"Bad input: {error}") from None

    async def close(self) -> None:
        """Wait for the grammar in work, and end the process that tries them."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._thread.shutdown)
        self._trial.close()

    async def _entry(self, key: Key) -> _Entry:
        if (entry := self._entries.get(key)) is not None:
            self._entries.move_to_end(key)
            return entry
        compiling = self._compiling.get(key)
        if compiling is None:
            if len(self._compiling) >= MAX_WAITING:
                message = f"{MAX_WAITING} grammars wait to be compiled"
                raise Overloaded(message, retry_after=RETRY_SECONDS)
            loop = asyncio.get_running_loop()
            compiling = loop.run_in_executor(self._thread, self._compile, key[1])
            self._compiling[key] = compiling
            compiling.add_done_callback(lambda future: self._keep(key, future))
        return await asyncio.shield(compiling)  # others may wait for the same

    def _keep(self, key: Key, future: asyncio.Future[_Entry]) -> None:
        del self._compiling[key]
        if future.cancelled() or future.exception() is not None:
            return
        entry = self._entries[key] = future.result()
        self._bytes += entry.bytes
        while len(self._entries) > MAX_KEPT or self._bytes > MAX_KEPT_BYTES:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= oldest.bytes

    # --- on the thread ---------------------------------------------------------------------------

    def _compile(self, grammar: Grammar) -> _Entry:
        source = len(grammar.source)
        try:
            verdict = self._trial.run(grammar)
            if verdict.refusal is not None:
                raise GrammarError(verdict.refusal)
            if self._compiler is None:
                self._compiler = self._vocabulary.compiler()
            compiled = self._compiler.compile(verdict.lowered)
        except GrammarError as error:
            return _Entry(None, str(error), source + 1024)
        return _Entry(compiled, "", max(verdict.memory, source, LEAST_BYTES))
