"""Engines with a file tier, and prompts that fill their memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.subjects.requests import Request
from tests.core import toy_oracle
from tests.core.engine.test_worker import TIMEOUT
from tests.core.toy_oracle import VOCAB, expected, names_of, run

from skerry_core.batch import ForwardBatch
from skerry_core.config import BLOCK_SIZE, EngineConfig, KVDtype
from skerry_core.engine.engine import Engine
from skerry_core.engine.second_tier import SecondTier, open_file
from skerry_core.kv.file_tier import FilePin, FileTier
from skerry_core.runners.toy import ToyRunner

KEY = b"model"
PRICE = 1.0  # seconds per token: the file is always faster
LENGTH = 5 * BLOCK_SIZE + 7


def open_engine(
    path: Path,
    *,
    num_blocks: int = 8,
    capacity: int = 1 << 20,
    model_key: bytes = KEY,
    dtype: KVDtype = "float16",
    before_step: Callable[[ForwardBatch], None] | None = None,
) -> Engine:
    runner = ToyRunner(
        num_blocks=num_blocks, vocab_size=VOCAB, dtype=dtype, before_step=before_step
    )
    file = open_file(path, runner, model_key=model_key, capacity_bytes=capacity)
    return Engine(runner, EngineConfig(), model_key=model_key, file_tier=file)


def request(id: str = "r", prompt_length: int = LENGTH, **fields: Any) -> Request:
    return toy_oracle.request(id, prompt_length, **{"max_tokens": 8} | fields)


def tier_of(engine: Engine) -> SecondTier:
    assert engine.second_tier is not None
    return engine.second_tier


def flush(engine: Engine) -> None:
    """Wait until what is pending now is written."""
    tier_of(engine)._writer.submit(lambda: None).result()


def restored(engine: Engine, one: Request, price: float = PRICE) -> Request:
    """The request with what the file has for it, as a worker would queue it."""
    future = tier_of(engine).restore(engine.pool, names_of(engine, one), price)
    kv = () if future is None else future.result(TIMEOUT)
    return replace(one, kv=kv)


def answer(engine: Engine, one: Request) -> int:
    """Run it, compare with the oracle; tokens of its prompt that were found."""
    engine.add(one.sequence())
    answers = run(engine)
    assert answers[one.id] == expected(replace(one, kv=()))
    usage = answers[one.id].usage
    assert usage is not None
    return usage.cached_tokens


# --- threads -------------------------------------------------------------------------------------


class Recording(FileTier):
    """Tells on which threads blocks are moved; reads and writes may be held back."""

    opened: threading.Event
    writable: threading.Event
    entered: threading.Event
    threads: set[str]
    num_read = 0

    @classmethod
    def of(cls, path: Path, runner: ToyRunner) -> Recording:
        tier = cls(
            path,
            block_bytes=runner.kv_format.block_bytes,
            capacity_bytes=1 << 20,
            identity=b"recording",
        )
        tier.opened, tier.entered, tier.threads = threading.Event(), threading.Event(), set()
        tier.writable = threading.Event()
        tier.opened.set()
        tier.writable.set()
        return tier

    def put(self, digest: bytes, block: bytes | memoryview, pin: FilePin | None = None) -> None:
        self.threads.add(threading.current_thread().name)
        assert self.writable.wait(TIMEOUT)
        super().put(digest, block, pin)

    def get(self, digest: bytes) -> bytes | None:
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        assert self.opened.wait(TIMEOUT)
        block = super().get(digest)
        self.num_read += block is not None
        return block
