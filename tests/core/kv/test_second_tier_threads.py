"""The file tier beside a running engine: reads on threads, aborts, stops, a process that dies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.subjects.requests import Request
from tests.core.engine.test_worker import TIMEOUT, Client
from tests.core.kv.file_tiers import (
    KEY,
    Recording,
    answer,
    flush,
    open_engine,
    request,
    restored,
    tier_of,
)
from tests.core.kv.sane_pools import check_pool
from tests.core.mid_write import kill_in_mid_write
from tests.core.toy_oracle import VOCAB, expected

from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.engine.worker import Worker
from skerry_core.runners.toy import ToyRunner


class Bench:
    """A worker whose engine has a recorded file tier; eviction and the rest as in life."""

    def __init__(self, path: Path) -> None:
        self.client = Client()
        self.tokens: list[int] = []
        runner = ToyRunner(
            num_blocks=8,
            vocab_size=VOCAB,
            before_step=lambda batch: self.tokens.append(batch.num_tokens),
        )
        self.file = Recording.of(path, runner)
        self.engine = Engine(runner, EngineConfig(), model_key=KEY, file_tier=self.file)
        self.worker = Worker(self.engine, deliver=self.client.deliver, failed=self.client.failed)
        self.worker.start()

    def answer(self, one: Request) -> int:
        self.worker.submit(one.sequence())
        self.client.wait_for(1)
        return self.check(one)

    def check(self, one: Request) -> int:
        told = self.client.answers[one.id]
        assert told == expected(one)
        assert told.usage is not None
        return told.usage.cached_tokens

    def evict_first(self) -> None:
        """Leave the prompt of salt 0 in the file alone: written, and out of memory."""
        for name, salt in (("first", 0), ("second", 1), ("third", 2)):
            assert self.answer(request(name, salt=salt)) == 0
        flush(self.engine)

    def close(self) -> None:
        self.file.opened.set()
        self.worker.close()
        assert self.engine.pool.num_used == 0
        check_pool(self.engine.pool)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "kv")
    bench.evict_first()
    yield bench
    bench.close()


def test_a_worker_restores_before_it_schedules(bench: Bench) -> None:
    del bench.tokens[:]
    assert bench.answer(request("again", max_tokens=4)) == 5 * BLOCK_SIZE
    assert bench.tokens == [7, 1, 1, 1]
    assert bench.file.threads == {"skerry-kv-write_0", "skerry-kv-read_0"}


def test_others_go_on_while_a_read_takes_its_time(bench: Bench) -> None:
    bench.file.opened.clear()
    slow = request("slow")
    bench.worker.submit(slow.sequence())
    assert bench.file.entered.wait(TIMEOUT)
    bench.answer(request("quick", 20, salt=7))
    assert "slow" not in bench.client.answers
    bench.file.opened.set()
    assert bench.client.wait_for(1) == {"slow"}
    assert bench.check(slow) == 5 * BLOCK_SIZE


def test_requests_with_one_prefix_share_what_is_read(bench: Bench) -> None:
    bench.file.opened.clear()
    both = [request(name) for name in ("a", "b")]
    for one in both:
        bench.worker.submit(one.sequence())
    reads = bench.file.num_read
    bench.file.opened.set()
    assert bench.client.wait_for(2) == {"a", "b"}
    for one in both:
        assert bench.check(one) == 5 * BLOCK_SIZE
    assert bench.file.num_read - reads == 5


def test_abort_does_not_wait_for_a_read(bench: Bench) -> None:
    bench.file.opened.clear()
    bench.worker.submit(request("slow").sequence())
    assert bench.file.entered.wait(TIMEOUT)
    bench.worker.abort("slow")
    assert bench.client.wait_for(1) == {"slow"}
    assert bench.client.answers["slow"].finish_reason == "cancelled"
    bench.file.opened.set()
    bench.answer(request("next", 20, salt=7))
    assert bench.client.ended.empty()


def test_a_stop_ends_requests_that_wait_for_a_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "kv")
    bench.evict_first()
    bench.file.opened.clear()
    bench.worker.submit(request("slow").sequence())
    assert bench.file.entered.wait(TIMEOUT)
    closing = threading.Thread(target=bench.worker.close)
    closing.start()
    assert bench.client.wait_for(1) == {"slow"}
    assert bench.client.answers["slow"].finish_reason == "cancelled"
    bench.file.opened.set()
    closing.join(TIMEOUT)
    assert not closing.is_alive()


def test_a_stop_keeps_the_prefix_cache(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "kv")
    bench.answer(request("first"))
    bench.close()
    bench = Bench(tmp_path / "kv")
    assert bench.answer(request("again")) == 5 * BLOCK_SIZE
    bench.close()


def test_a_read_that_fails_costs_computing(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Recording, digest: bytes) -> bytes:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Recording, "get", fail)
    assert bench.answer(request("again")) == 0
    assert caplog.records[-1].message == "reading the second tier failed"


# --- a process that dies -------------------------------------------------------------------------

NODE = """
import sys
from pathlib import Path
from tests.core.kv.file_tiers import open_engine, request
from tests.core.toy_oracle import run
engine = open_engine(Path(sys.argv[1]), capacity=100 << 10)
salt = 0
while True:
    engine.add(request(salt=salt % 6).sequence())
    run(engine)
    salt += 1
    if salt == 6:
        print("writing", flush=True)
"""


@pytest.mark.parametrize("moment", range(3))
def test_kill_in_mid_write_leaves_only_true_blocks(
    tmp_path: Path, moment: int, subprocess_env: dict[str, str]
) -> None:
    path = tmp_path / "kv"
    kill_in_mid_write(NODE, path, 0.1 * moment + 0.05, subprocess_env)
    engine = open_engine(path, capacity=100 << 10)
    assert tier_of(engine).file.digests()
    for salt in range(6):
        answer(engine, restored(engine, request(f"r{salt}", salt=salt, max_tokens=20)))
    assert engine.statistics().restored_blocks > 0
    engine.close()
