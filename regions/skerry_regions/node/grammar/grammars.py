"""The grammars of one served model: tried, compiled, kept, all away from the event loop.

Submit.grammar ──Trial──▶ lowered ──compile──▶ CompiledGrammar ──▶ Matcher for the engine
                 process          one thread                       per stream

Tenants take turns at the thread, and each has what is kept to itself.
"""

from __future__ import annotations

import asyncio
import functools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from skerry.errors import InvalidInput
from skerry_core.engine.engine import Engine
from skerry_core.grammar.call_marks import CallMark
from skerry_core.grammar.compiler import GrammarCompiler
from skerry_core.grammar.lowering import Grammar, GrammarKind
from skerry_core.grammar.matcher import CompiledGrammar, GrammarError, Matcher
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.node.grammar.trial import GrammarVocabulary, Trial
from skerry_regions.process.confined import Exhausted
from skerry_regions.process.fair_queue import FairQueue

MAX_TENANT_WAITING = 64  # grammars to be compiled; each takes milliseconds, a hostile one a second
MAX_KEPT = 512
MAX_KEPT_BYTES = 256 << 20
MAX_TENANT_KEPT = 128
MAX_TENANT_BYTES = 64 << 20
LEAST_BYTES = 64 << 10  # what a grammar counts at least
TOO_MUCH = "the grammar takes too much time or memory to compile"

Key = tuple[bytes, GrammarKind, str, CallMark | None]
"""A tenant's cache key, with which no other tenant's grammars can be timed; the grammar."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A grammar as it is kept: compiled, or why it is refused."""

    compiled: CompiledGrammar | None
    refusal: str
    bytes: int


class _Kept:
    """One tenant's grammars, the least recently used first."""

    def __init__(self) -> None:
        self.entries: OrderedDict[Key, _Entry] = OrderedDict()
        self.bytes = 0

    def keep(self, key: Key, entry: _Entry) -> None:
        self.entries[key] = entry
        self.bytes += entry.bytes

    def drop_oldest(self) -> int:
        """Drop the oldest; return the bytes that it took."""
        _, oldest = self.entries.popitem(last=False)
        self.bytes -= oldest.bytes
        return oldest.bytes


def grammars_of(files: ModelFiles, engine: Engine) -> Grammars:
    """Return grammars for a model and the engine that runs it."""
    size = engine.runner.model.vocab_size
    return Grammars(GrammarVocabulary(files.tokenizer, size, files.stop_token_ids))


class Grammars:
    """Gives streams their matchers. Lives on an event loop; `close` it there."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._trial = Trial(vocabulary)
        self._compiler: GrammarCompiler | None = None
        self.token_texts: Sequence[bytes] = ()  # of each token, once they were needed
        self._queue = FairQueue("skerry-grammars", max_tenant_waiting=MAX_TENANT_WAITING)
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()  # by tenant, least recent first
        self.num_kept = 0  # of all tenants
        self._bytes = 0
        self._compiling: dict[Key, asyncio.Task[_Entry]] = {}

    async def matcher(
        self, grammar: Grammar, *, cache_key: bytes, output_ids: Sequence[int]
    ) -> Matcher:
        """Return a matcher that has taken a transcript.

        Raises `InvalidInput` for a grammar that cannot be used, `Overloaded` when too many wait,
        `RateLimited` for a tenant whose grammars took too much of late.
        """
        entry = await self._entry((cache_key, grammar.kind, grammar.source, grammar.calls))
        compiled = entry.compiled
        if compiled is None:
            raise InvalidInput(f"Bad input: {entry.refusal}")
        if not output_ids:
            return compiled.matcher()
        try:
            return await self._queue.run(cache_key, lambda: compiled.matcher(output_ids))
        except GrammarError as error:
            raise InvalidInput(f"Bad input: {error}") from None

    async def load_texts(self, cache_key: bytes) -> None:
        """Have `token_texts`. Raises `InvalidInput` where llguidance does not know the tokenizer,
        and what `matcher` raises."""
        if not self.token_texts:
            try:
                self.token_texts = await self._queue.run(cache_key, lambda: self._loaded().texts)
            except GrammarError as error:
                raise InvalidInput(f"Bad input: {error}") from None

    async def close(self) -> None:
        """Wait for the grammar in work, and end the process that tries them."""
        for compiling in list(self._compiling.values()):
            compiling.cancel()
        await asyncio.to_thread(self._queue.close)
        self._trial.close()

    async def _entry(self, key: Key) -> _Entry:
        if (kept := self._kept.get(key[0])) is not None and key in kept.entries:
            self._kept.move_to_end(key[0])
            kept.entries.move_to_end(key)
            return kept.entries[key]
        compiling = self._compiling.get(key)
        if compiling is None:
            compiling = asyncio.create_task(self._compiled(key), name="grammar in work")
            self._compiling[key] = compiling
            compiling.add_done_callback(functools.partial(self._over, key))
        try:
            return await asyncio.shield(compiling)  # others may wait for the same
        finally:
            del compiling  # whose error refers to this frame by its traceback

    async def _compiled(self, key: Key) -> _Entry:
        tenant, kind, source, calls = key
        try:
            entry = await self._queue.run(tenant, lambda: self._compile(kind, source, calls))
        except Exhausted:
            entry = _Entry(None, TOO_MUCH, len(source) + 1024)
        self._keep(key, entry)
        return entry

    def _over(self, key: Key, compiling: asyncio.Task[_Entry]) -> None:
        del self._compiling[key]
        if not compiling.cancelled():
            compiling.exception()  # seen, if whoever waited for it is gone

    def _keep(self, key: Key, entry: _Entry) -> None:
        """Keep a grammar, and no more of its tenant's, and of all, than there is room for."""
        kept = self._kept.setdefault(key[0], _Kept())
        self._kept.move_to_end(key[0])
        kept.keep(key, entry)
        self.num_kept += 1
        self._bytes += entry.bytes
        while len(kept.entries) > MAX_TENANT_KEPT or kept.bytes > MAX_TENANT_BYTES:
            self._drop_oldest(key[0])
        while self.num_kept > MAX_KEPT or self._bytes > MAX_KEPT_BYTES:
            self._drop_oldest(next(iter(self._kept)))

    def _drop_oldest(self, tenant: bytes) -> None:
        kept = self._kept[tenant]
        self._bytes -= kept.drop_oldest()
        self.num_kept -= 1
        if not kept.entries:
            del self._kept[tenant]

    # --- on the thread ---------------------------------------------------------------------------

    def _compile(self, kind: GrammarKind, source: str, calls: CallMark | None) -> _Entry:
        """Raises `Exhausted`."""
        try:
            result = self._trial.run(kind, source, calls)
            if result.refusal is not None:
                raise GrammarError(result.refusal)
            compiled = self._loaded().compile(result.lowered, calls, result.ends)
        except GrammarError as error:
            return _Entry(None, str(error), len(source) + 1024)
        return _Entry(compiled, "", max(result.memory, len(source), LEAST_BYTES))

    def _loaded(self) -> GrammarCompiler:
        if self._compiler is None:
            self._compiler = self._vocabulary.compiler()
        return self._compiler
