"""KV between engines: blocks leave as they are computed, and arrive as prefix cache.

The scheduler never learns of it. A block that comes with a request is adopted like any other cached
block; only the open block at a prompt's end, which none can share, belongs to its sequence.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

import numpy as np

from skerry_core.blocks import BlockPool, Digest
from skerry_core.config import BLOCK_SIZE
from skerry_core.device_pages import DevicePage
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.step_plan import PlannedRow
from skerry_core.kv.canonical import admit, adopt_block, adopt_pages, converted, export_blocks
from skerry_core.names import BlockNames
from skerry_core.page_checksums import KVChecksumError
from skerry_core.request import KVBlock, Request
from skerry_core.runner import ModelRunner, PageMover

logger = logging.getLogger(__name__)


class KVExchange:
    """Takes blocks out of, and puts them into, one engine's runner and pool."""

    def __init__(self, runner: ModelRunner, pool: BlockPool, names: BlockNames) -> None:
        self._runner = runner
        self._pool = pool
        self._names = names

    def names(self, request: Request, *, private: bool = False) -> list[Digest]:
        """Return the names of the blocks that an export hands out, in order. From any thread.

        A transcript that goes on exports its full blocks, output included; only a prompt alone
        exports the open block at its end too.
        """
        tokens = np.array((*request.prompt_ids, *request.output_ids), np.int32)
        names = self._names.of if request.output_ids else self._names.of_prompt
        return names(tokens, request.cache_key, private=private)

    def held(self, digests: Iterable[Digest]) -> set[Digest]:
        """Return which of these can be matched now. From any thread; the answer ages at once."""
        return {digest for digest in digests if self._pool.match([digest])}

    def adopt(self, sequence: Sequence) -> None:
        """Make full blocks that came along prefix cache; the open block, the last, becomes the
        sequence's tail."""
        sequence.tail = self.adopt_blocks(sequence.prefix_digests(self._names), sequence.kv)
        sequence.kv = ()  # let go of the bytes

    def adopt_blocks(self, names: list[Digest], blocks: Iterable[KVBlock]) -> KVBlock | None:
        """Adopt blocks of a prompt whose blocks have these names, in order; return the open block.

        Blocks that do not fit, by space, shape or the range of their dtype, or that were spoilt on
        their way, are computed again. None of them pushes out another, or what stands before it in
        the prompt. Those in pages of the device are written at once.
        """
        target = self._runner.kv_format.dtype
        held = self._pool.acquire(names)
        try:
            for in_pages, together in groupby(blocks, self._takes_page):
                if in_pages:
                    self._adopt_pages(list(together), held)
                    continue
                for block in together:
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

    def _takes_page(self, block: KVBlock) -> bool:
        """Return whether a full block is in a page that the runner can read."""
        return (
            block.num_tokens == BLOCK_SIZE
            and isinstance(block.data, DevicePage)
            and block.checksum is not None
            and block.dtype == self._runner.kv_format.dtype
            and isinstance(self._runner, PageMover)
        )

    def _adopt_pages(self, blocks: list[KVBlock], held: list[int]) -> None:
        """Adopt blocks in pages, up to the first that was spoilt; they join `held`. Raises
        KVChecksumError."""
        assert isinstance(self._runner, PageMover)
        try:
            held += self._pool.acquire(adopt_pages(self._runner, self._pool, blocks))
        except KVChecksumError:
            for block in blocks if len(blocks) > 1 else ():
                self._adopt_pages([block], held)
            raise

    def write_tail(self, sequence: Sequence) -> bool:
        """Put an open block where its sequence, admitted in this step, goes on from. False: it was
        spoilt on its way, and the sequence must not run from inside it."""
        tail, sequence.tail = sequence.tail, None
        if tail is None:
            raise RuntimeError(f"{sequence.id} starts inside a block it does not have")
        try:
            admit(self._runner, sequence.blocks[sequence.prompt_tokens // BLOCK_SIZE], tail)
        except KVChecksumError as error:
            logger.warning("KV that was handed over is not taken: %s", error)
            return False
        return True

    def exported(self, row: PlannedRow) -> tuple[KVBlock, ...]:
        """Return the blocks of a computed row's input (see `names`) that are final since the last
        call; the open one with the first token, after which none follow.

        A row that was preempted meanwhile has none: they are computed again, and so is the token
        that they end with.
        """
        sequence = row.sequence
        if not row.is_placed:
            row.makes_token = False
            return ()
        num_input = sequence.prompt_tokens + len(sequence.request.output_ids)
        num_full = min(row.end, num_input) // BLOCK_SIZE
        indices = list(range(sequence.num_exported, num_full))
        names = [sequence.digests[index] for index in indices]
        sequence.num_exported += len(indices)
        sequence.is_exporting = not row.makes_token
        if row.makes_token and sequence.prompt_tokens % BLOCK_SIZE and sequence.output_tokens == 0:
            indices.append(num_full)
            private = sequence.private_blocks
            names.append(self.names(sequence.request, private=private)[-1])
        blocks = [sequence.blocks[index] for index in indices]
        pages_now = sequence.export_pages
        copies = export_blocks(self._runner, blocks, names, pages_now() if pages_now else None)
        if indices and (num_last := num_input - indices[-1] * BLOCK_SIZE) < BLOCK_SIZE:
            copies[-1] = replace(copies[-1], num_tokens=num_last)
        return tuple(copies)
