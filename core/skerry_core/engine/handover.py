"""KV between engines: blocks leave as they are computed, and arrive as prefix cache.

The scheduler never learns of it. A block that comes with a request is adopted like any other cached
block; only the open block at a prompt's end, which nobody can share, belongs to its sequence.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from skerry_core.blocks import BlockPool, Digest
from skerry_core.config import BLOCK_SIZE
from skerry_core.engine.plan import Row
from skerry_core.engine.sequence import Sequence
from skerry_core.kv.canonical import admit, adopt_block, converted, export_blocks
from skerry_core.names import BlockNames
from skerry_core.page_checksums import KVChecksumError
from skerry_core.request import KVBlock, Request
from skerry_core.runner import ModelRunner

logger = logging.getLogger(__name__)


class Handover:
    """Takes blocks out of, and puts them into, one engine's runner and pool."""

    def __init__(self, runner: ModelRunner, pool: BlockPool, names: BlockNames) -> None:
        self._runner = runner
        self._pool = pool
        self._names = names

    def names(self, request: Request) -> list[Digest]:
        """Names of the blocks that `exports_kv` will tell, in order. From any thread.

        A transcript that goes on tells its full blocks, output included; only a prompt alone tells
        the open block at its end too.
        """
        tokens = np.array((*request.prompt_ids, *request.output_ids), np.int32)
        names = self._names.of if request.output_ids else self._names.of_prompt
        return names(tokens, request.cache_key, private=request.private_blocks)

    def prefix_names(self, request: Request) -> list[Digest]:
        """Names of all blocks that may be found in a cache for a request, its transcript included.
        From any thread. None when every token has to run, for the logprobs of the prompt."""
        if request.prompt_logprobs is not None and not request.output_ids:
            return []
        tokens = np.array((*request.prompt_ids, *request.output_ids)[:-1], np.int32)
        return self._names.of(tokens, request.cache_key, private=request.private_blocks)

    def held(self, digests: Iterable[Digest]) -> set[Digest]:
        """Which of these can be matched now. From any thread; old as soon as it is told."""
        return {digest for digest in digests if self._pool.match([digest])}

    def adopt(self, request: Request) -> KVBlock | None:
        """Make full blocks that came along prefix cache; the open block, the last, is returned."""
        return self.adopt_blocks(self.prefix_names(request), request.kv) if request.kv else None

    def adopt_blocks(self, names: list[Digest], blocks: Iterable[KVBlock]) -> KVBlock | None:
        """As `adopt`, of a prompt whose blocks have these names, in order.

        Blocks that do not fit, by space, shape or the range of their dtype, or that were spoilt on
        their way, are computed again. None of them pushes out another, or what stands before it in
        the prompt.
        """
        target = self._runner.kv_format.dtype
        held = self._pool.acquire(names)
        try:
            for block in blocks:
                if block.num_tokens < BLOCK_SIZE:
                    return converted(block, target)
                if adopt_block(self._runner, self._pool, block):
                    held += self._pool.acquire([block.digest])
        except KVChecksumError as error:
            logger.warning("KV that was handed over is not taken: %s", error)
        except ValueError:  # KVRangeError among others
            pass
        finally:
            self._pool.release(held)
        return None

    def write_tails(self, rows: Iterable[Row]) -> list[Sequence]:
        """Put open blocks where their sequences, admitted in this step, go on from. Sequences whose
        block was spoilt on its way have none now; they must not run from inside it."""
        admitted = [row for row in rows if row.is_admission and row.start % BLOCK_SIZE]
        return [row.sequence for row in admitted if not self._write_tail(row.sequence)]

    def _write_tail(self, sequence: Sequence) -> bool:
        tail, sequence.tail = sequence.tail, None
        if tail is None:
            raise RuntimeError(f"{sequence.request.id} starts inside a block it does not have")
        try:
            admit(self._runner, sequence.blocks[sequence.num_prompt // BLOCK_SIZE], tail)
        except KVChecksumError as error:
            logger.warning("KV that was handed over is not taken: %s", error)
            return False
        return True

    def exported(self, row: Row) -> tuple[KVBlock, ...]:
        """Blocks of a computed row's input (see `names`) that are final since the last time; the
        open one with the first token."""
        sequence = row.sequence
        if not sequence.request.exports_kv:
            return ()
        num_input = sequence.num_prompt + len(sequence.request.output_ids)
        num_full = min(sequence.num_computed, num_input) // BLOCK_SIZE
        indices = list(range(sequence.num_exported, num_full))
        names = [sequence.digests[index] for index in indices]
        sequence.num_exported += len(indices)
        if row.makes_token and sequence.num_prompt % BLOCK_SIZE and sequence.num_output == 0:
            indices.append(num_full)
            names.append(self.names(sequence.request)[-1])
        blocks = [sequence.blocks[index] for index in indices]
        pages_now = sequence.request.export_pages
        copies = export_blocks(self._runner, blocks, names, pages_now() if pages_now else None)
        if indices and (num_last := num_input - indices[-1] * BLOCK_SIZE) < BLOCK_SIZE:
            copies[-1] = replace(copies[-1], num_tokens=num_last)
        return tuple(copies)
