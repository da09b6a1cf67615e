"""Evicted blocks come back from the file: the same tokens, and nothing of them computed again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.core.engine.test_worker import TIMEOUT
from tests.core.kv.file_tiers import (
    KEY,
    LENGTH,
    PRICE,
    Recording,
    answer,
    flush,
    open_engine,
    request,
    restored,
    tier_of,
)
from tests.core.toy_oracle import VOCAB, expected, names_of, run

from skerry_core.config import BLOCK_SIZE, EngineConfig, KVDtype
from skerry_core.engine.engine import Engine
from skerry_core.engine.second_tier import SecondTier, open_file
from skerry_core.kv.file_tier import FileTier
from skerry_core.runners.toy import ToyRunner


def fill(engine: Engine, salt: int = 90) -> None:
    """Evict everything by something else."""
    answer(
        engine, request("other", engine.pool.num_blocks * BLOCK_SIZE - 10, salt=salt, max_tokens=5)
    )


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_engine(tmp_path / "kv")
    yield engine
    engine.close()


def test_evicted_blocks_come_back(engine: Engine) -> None:
    one = request(max_tokens=30, cache_key=b"tenant")
    assert answer(engine, one) == 0
    fill(engine)
    assert engine.pool.match(names_of(engine, one)) == 0
    assert answer(engine, restored(engine, one)) == 5 * BLOCK_SIZE
    assert engine.statistics().restored_blocks == 5


def test_only_what_memory_lacks_is_read(engine: Engine) -> None:
    """The end of a prefix is evicted first; its beginning must not be pushed out by the rest."""
    one = request(max_tokens=1)
    answer(engine, one)
    answer(engine, request("other", 4 * BLOCK_SIZE, salt=3, max_tokens=1))
    resident = engine.pool.match(names_of(engine, one))
    assert 0 < resident < 5
    assert answer(engine, restored(engine, one)) == 5 * BLOCK_SIZE
    assert engine.statistics().restored_blocks == 5 - resident


def test_a_transcript_is_found_too(engine: Engine) -> None:
    one = request(prompt_length=60, max_tokens=200)
    answer(engine, one)
    fill(engine)
    said = expected(one).token_ids
    resumed = request(prompt_length=60, max_tokens=200, output_ids=tuple(said[:150]))
    engine.add(restored(engine, resumed).sequence())
    assert run(engine)["r"].token_ids == said[150:]
    assert engine.statistics().restored_blocks == (60 + 150 - 1) // BLOCK_SIZE


def test_prompt_logprobs_read_nothing(engine: Engine) -> None:
    answer(engine, request())
    fill(engine)
    one = request(prompt_logprobs=1)
    assert restored(engine, one).kv == ()
    assert answer(engine, one) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_it_survives_a_restart(tmp_path: Path, dtype: KVDtype) -> None:
    one = request(max_tokens=30)
    engine = open_engine(tmp_path / "kv", dtype=dtype)
    answer(engine, one)
    engine.save_cache(seconds=10.0)
    engine.close()
    engine = open_engine(tmp_path / "kv", dtype=dtype)
    assert answer(engine, restored(engine, one)) == 5 * BLOCK_SIZE
    engine.close()


def test_pinned_blocks_outlast_pressure_and_a_restart_in_the_file(tmp_path: Path) -> None:
    """Of a pool of 8 blocks one tenant pins two, in a file of 8; others use both over and over."""
    one = request(max_tokens=1, cache_key=b"agent", pins=((LENGTH, 600.0),))
    capacity = 2 * 4096 + 8 * (4096 + 64)
    engine = open_engine(tmp_path / "kv", capacity=capacity)
    answer(engine, one)
    engine.save_cache(seconds=0.0)  # no time but for what is pinned
    assert engine.statistics().blocks_filed == 2
    engine.close()
    engine = open_engine(tmp_path / "kv", capacity=capacity)
    for salt in range(40, 50):
        fill(engine, salt)
        flush(engine)
    assert engine.statistics().blocks_filed == 8
    assert answer(engine, restored(engine, one)) == 2 * BLOCK_SIZE
    plain = replace(one, id="plain", cache_key=b"other", pins=())
    answer(engine, plain)
    fill(engine, 50)
    flush(engine)
    fill(engine, 51)  # running requests go before: what was pinned in memory goes out to the file
    flush(engine)
    for salt in range(52, 60):
        fill(engine, salt)
        flush(engine)
    assert answer(engine, restored(engine, plain)) == 0
    assert answer(engine, restored(engine, one)) == 2 * BLOCK_SIZE
    engine.close()


def test_saving_stops_when_the_time_is_up(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "kv")
    answer(engine, request())
    engine.save_cache(seconds=0.0)
    assert engine.statistics().blocks_filed == 0
    engine.close()


@pytest.mark.parametrize("change", [{"model_key": b"other"}, {"dtype": "float32"}])
def test_blocks_of_another_model_or_build_are_a_miss(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    one = request(max_tokens=30)
    engine = open_engine(tmp_path / "kv")
    answer(engine, one)
    engine.save_cache(seconds=10.0)
    engine.close()
    engine = open_engine(tmp_path / "kv", **change)
    assert tier_of(engine).file.digests() == []
    assert answer(engine, restored(engine, one)) == 0
    engine.close()


def test_another_tenants_blocks_are_a_miss(engine: Engine) -> None:
    answer(engine, request(cache_key=b"one"))
    fill(engine)
    assert answer(engine, restored(engine, request(cache_key=b"two"))) == 0


@pytest.mark.parametrize("torn", range(5))
def test_a_torn_block_costs_computing_from_there(tmp_path: Path, torn: int) -> None:
    one = request(max_tokens=30)
    engine = open_engine(tmp_path / "kv")
    answer(engine, one)
    content = engine.runner.export_block(engine.pool.acquire(names_of(engine, one))[torn]).tobytes()
    engine.save_cache(seconds=0.0)
    engine.close()

    engine = open_engine(tmp_path / "kv")
    answer(engine, one)
    engine.save_cache(seconds=10.0)
    engine.close()
    data = bytearray((tmp_path / "kv").read_bytes())
    position = data.index(content) + 501
    data[position] ^= 1
    (tmp_path / "kv").write_bytes(data)
    engine = open_engine(tmp_path / "kv")
    assert answer(engine, restored(engine, one)) == torn * BLOCK_SIZE
    engine.close()


def test_a_small_file_keeps_the_newest(tmp_path: Path) -> None:
    engine = open_engine(tmp_path / "kv", capacity=5 * 4096)
    for salt in range(20):
        answer(engine, request(salt=salt))
    engine.save_cache(seconds=10.0)
    tier = tier_of(engine)
    assert len(tier.file) == tier.file._slots < 5
    engine.close()


def test_a_full_disk_costs_a_warning_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FileTier, slot: int, block: bytes) -> None:
        raise OSError(28, "No space left on device")

    engine = open_engine(tmp_path / "kv")
    monkeypatch.setattr(FileTier, "_write_payload", refuse)
    one = request()
    answer(engine, one)
    fill(engine)
    fill(engine, salt=91)
    engine.save_cache(seconds=10.0)
    flush(engine)
    assert answer(engine, restored(engine, one)) == 0
    engine.close()
    assert [record.message for record in caplog.records] == [
        "not all evicted KV blocks can be kept: [Errno 28] No space left on device"
    ]


@pytest.mark.parametrize("kept", [1, 3])
def test_blocks_on_their_way_are_bounded(tmp_path: Path, kept: int) -> None:
    """Out: what the disk does not take in time is forgotten. Back: the rest is computed."""
    runner = ToyRunner(num_blocks=8, vocab_size=VOCAB)
    engine = Engine(runner, EngineConfig(), model_key=KEY)
    file = Recording.of(tmp_path / "kv", runner)
    limit = kept * runner.kv_format.block_bytes
    tier = SecondTier(file, runner, pending_bytes=limit, restored_bytes=limit)
    engine.pool._evicting = tier.keep
    file.writable.clear()
    answer(engine, request())
    fill(engine)
    assert tier._num_dropped == 5 - kept
    file.writable.set()
    engine.pool._evicting = None
    tier.save(engine.pool, 10.0)
    answer(engine, request())
    tier.save(engine.pool, 10.0)
    fill(engine)
    future = tier.restore(engine.pool, names_of(engine, request()), PRICE)
    assert future is not None
    assert len(future.result(TIMEOUT)) == kept
    tier.close()


# --- what it costs -------------------------------------------------------------------------------


def test_computing_is_preferred_when_it_is_faster_and_the_file_is_tried_again(
    tmp_path: Path,
) -> None:
    runner = ToyRunner(num_blocks=8, vocab_size=VOCAB)
    file = open_file(tmp_path / "kv", runner, model_key=KEY, capacity_bytes=1 << 20)
    engine = Engine(runner, EngineConfig(), model_key=KEY)
    ticks = itertools.count()
    tier = SecondTier(file, runner, clock=lambda: float(next(ticks)))
    names = names_of(engine, request())
    answer(engine, request())
    tier.save(engine.pool, 100.0)
    engine.pool.allocate(8)  # evicts all
    engine.pool.release(range(8))

    price = 0.005  # of a token; a block is 0.32 s
    future = tier.restore(engine.pool, names, price)
    assert future is not None, "before it is known, the file is taken to be fast"
    assert len(future.result(TIMEOUT)) == 5
    assert 1000 < tier.bandwidth < 5000  # 1 KiB per second by this clock, partly learned
    refused = 0
    while tier.restore(engine.pool, names, price) is None:
        refused += 1
    assert refused > 1
    tier.close()


def test_adoption_counts(engine: Engine) -> None:
    tier = tier_of(engine)
    before = tier.bandwidth
    tier.adopted(1, 1000.0)
    assert tier.bandwidth < before / 1000
