"""Between an engine's blocks and its file: what is evicted goes out, what is wanted comes back.

    BlockPool.allocate ── keep ─▶ pending ═ writer thread ═▶ FileTier
    Worker.submit ── restore ◀═ reader thread ═ FileTier           then adopted like a hand-over

A step only copies blocks that are about to be overwritten, at most as many as may be pending; what
does not fit is forgotten, as it would be without a file. Nothing here waits for the disk except the
two helper threads.

Blocks come back when that takes less time than computing their tokens again, by what reads and
adoptions have cost of late. Each time it does not, the estimate is lowered a little, so that one
slow moment of a disk is not for ever.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np

from skerry_core.blocks import BlockPool, Digest
from skerry_core.config import BLOCK_SIZE
from skerry_core.kv.canonical import KVArray, kv_dtype
from skerry_core.pins import PIN_SHARE, Pin
from skerry_core.request import KVBlock
from skerry_core.runner import ModelRunner

if TYPE_CHECKING:
    from skerry_core.kv.file_tier import FilePin, FileTier

logger = logging.getLogger(__name__)

PENDING_BYTES = 64 << 20  # evicted, not yet written
PINNED_SECONDS = 5.0  # at most, on a stop, to write pinned blocks
RESTORED_BYTES = 256 << 20  # read or to be read, not yet adopted
INITIAL_SECONDS_PER_BYTE = 1e-9  # of reads, until one was timed
LEARNING_RATE = 0.2
OPTIMISM = 0.99  # by which an estimate shrinks each time that it speaks against reading

Blocks = tuple[KVBlock, ...]


def open_file(
    path: Path,
    runner: ModelRunner,
    *,
    model_key: bytes,
    capacity_bytes: int,
    pin_share: float = PIN_SHARE,
) -> FileTier:
    """Return a file for blocks of this runner. Raises FileTierError."""
    from skerry_core.kv.file_tier import FileTier  # not for nodes that have no file

    identity = repr((model_key, runner.numeric_build, runner.kv_format))
    return FileTier(
        path,
        block_bytes=runner.kv_format.block_bytes,
        capacity_bytes=capacity_bytes,
        identity=identity.encode(),
        pin_share=pin_share,
    )


class SecondTier:
    """The file of one engine, which it owns, and the two threads that access it.

    `keep`, `save` and `adopted` are for the engine's thread, the rest for any; `clock` is that of
    pins too.
    """

    def __init__(
        self,
        file: FileTier,
        runner: ModelRunner,
        *,
        pending_bytes: int = PENDING_BYTES,
        restored_bytes: int = RESTORED_BYTES,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.file = file
        self._runner = runner
        self._format = runner.kv_format
        self._max_pending = max(1, pending_bytes // self._format.block_bytes)
        self._max_restored = max(1, restored_bytes // self._format.block_bytes)
        self._clock = clock
        self._writer = ThreadPoolExecutor(1, "skerry-kv-write")
        self._reader = ThreadPoolExecutor(1, "skerry-kv-read")
        self._lock = Lock()  # guards all below
        self._pending: dict[Digest, KVArray] = {}
        # A block lives here as long as a request that waits for its adoption holds it, so that
        # requests with one prefix share one copy.
        self._restored: WeakValueDictionary[Digest, KVArray] = WeakValueDictionary()
        self._queued = 0  # blocks that the reader still has to look at
        self._read_pace = INITIAL_SECONDS_PER_BYTE
        self._adopt_pace = 0.0  # seconds per byte
        self.num_restored = self._num_dropped = 0
        self.is_empty = not len(file)  # nothing was ever kept: there is nothing to look for

    def __contains__(self, digest: Digest) -> bool:
        """Return whether `restore` would find the block, as far as is known without reading it."""
        return digest in self._pending or digest in self.file

    @property
    def bandwidth(self) -> float:
        """Return bytes per second at which blocks have come back of late, adoption included."""
        return 1 / (self._read_pace + self._adopt_pace)

    # --- out -------------------------------------------------------------------------------------

    def keep(self, block: int, digest: Digest, pin: Pin | None = None) -> None:
        """Copy a block whose memory is about to be given to others; a pinned one stays so."""
        if self._holds(digest, pin):
            return
        if len(self._pending) >= self._max_pending:
            self._drop("evicted blocks come faster than the disk takes them")
            return
        data = np.ascontiguousarray(self._runner.export_block(block))
        with self._lock:
            self._pending[digest] = data
        self.is_empty = False
        self._writer.submit(self._write, digest, data, pin)

    def save(self, pool: BlockPool, seconds: float) -> None:
        """Write the prefix cache, its newest blocks first, for a limited time: before a stop.
        Pinned ones come before, and have a time of their own."""
        started = self._clock()
        for block, digest in pool.cached_blocks():
            pin = pool.pin_of(block)
            if self._clock() >= started + (seconds if pin is None else PINNED_SECONDS):
                break
            if not self._holds(digest, pin):
                data = np.ascontiguousarray(self._runner.export_block(block))
                self._put(digest, data, pin)

    def _holds(self, digest: Digest, pin: Pin | None) -> bool:
        """Return whether a block is in the file, or on its way; in the file it is used now, and
        pinned."""
        return self.file.touch(digest, self._left(pin)) or digest in self._pending

    def _left(self, pin: Pin | None) -> FilePin | None:
        return None if pin is None else (pin[0] - self._clock(), pin[1])

    def _write(self, digest: Digest, data: KVArray, pin: Pin | None) -> None:
        self._put(digest, data, pin)
        with self._lock:
            del self._pending[digest]

    def _put(self, digest: Digest, data: KVArray, pin: Pin | None) -> None:
        try:
            self.file.put(digest, data.reshape(-1).view(np.uint8).data, self._left(pin))
        except OSError as error:
            self._drop(str(error))

    def _drop(self, why: str) -> None:
        with self._lock:
            self._num_dropped += 1
            is_first = self._num_dropped == 1
        if is_first:
            logger.warning("not all evicted KV blocks can be kept: %s", why)

    # --- back ------------------------------------------------------------------------------------

    def restore(
        self, pool: BlockPool, digests: Sequence[Digest], seconds_per_token: float
    ) -> Future[Blocks] | None:
        """Read what the pool lacks of a prompt's first blocks; None when there is nothing to gain.

        `digests` name the prompt's blocks from its start, and `seconds_per_token` is the price of
        computing. The future ends with the blocks that were found whole, in order, up to the first
        that was not.
        """
        wanted, saved = self._wanted(pool, digests)
        with self._lock:
            waiting = self._queued + len(wanted)
        seconds = waiting * self._format.block_bytes * (self._read_pace + self._adopt_pace)
        if not wanted:
            return None
        if seconds >= saved * BLOCK_SIZE * seconds_per_token:
            self._read_pace *= OPTIMISM
            self._adopt_pace *= OPTIMISM
            return None
        with self._lock:
            self._queued += len(wanted)
        return self._reader.submit(self._read, pool, wanted)

    def adopted(self, num_blocks: int, seconds: float) -> None:
        """Learn what it took to put restored blocks into the engine's memory."""
        sample = seconds / (num_blocks * self._format.block_bytes)
        self._adopt_pace += LEARNING_RATE * (sample - self._adopt_pace)

    def _wanted(self, pool: BlockPool, digests: Sequence[Digest]) -> tuple[list[Digest], int]:
        """Return blocks to read, and how many blocks of the prompt then need no computing."""
        resident = end = pool.match(digests)
        room = self._max_restored - self._queued - len(self._restored)
        room = min(room, pool.num_idle)
        wanted: list[Digest] = []
        for digest in digests[resident:]:
            if not pool.match([digest]):
                if digest not in self or len(wanted) >= room:
                    break
                wanted.append(digest)
            end += 1
        return wanted, end - resident if wanted else 0

    def _read(self, pool: BlockPool, digests: Iterable[Digest]) -> Blocks:
        blocks = []
        missed = False
        for digest in digests:
            with self._lock:
                self._queued -= 1
            if missed or pool.match([digest]):  # or another request brought it meanwhile
                continue
            data = self._find(digest)
            if data is None:
                missed = True
            else:
                blocks.append(KVBlock(digest, BLOCK_SIZE, data, self._format.dtype))
        self.num_restored += len(blocks)
        return tuple(blocks)

    def _find(self, digest: Digest) -> KVArray | None:
        with self._lock:
            data = self._restored.get(digest)
            if data is None:
                data = self._pending.get(digest)
        if data is not None:
            return data
        started = self._clock()
        content = self.file.get(digest)
        if content is None:
            return None
        sample = (self._clock() - started) / len(content)
        self._read_pace += LEARNING_RATE * (sample - self._read_pace)
        data = np.frombuffer(content, kv_dtype(self._format.dtype)).reshape(self._format.shape)
        with self._lock:
            self._restored[digest] = data
        return data

    def close(self) -> None:
        """Write what is pending, end the threads and close the file."""
        self._reader.shutdown(cancel_futures=True)
        self._writer.shutdown()
        self.file.close()
