"""Blocks that leave beside steps: cached ones for others, a few per step and pinned until they are
copied, and those of a prompt that is handed over."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tests.core.engine.lagging import LaggingRunner
from tests.core.engine.pipelining import Given, engine_over, step_on, undivided
from tests.core.engine.test_worker import Client
from tests.core.toy_oracle import VOCAB, expected, names_of, request, run

from skerry_core.batch import ForwardBatch, StepResult
from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.engine.exports import BLOCKS_PER_STEP
from skerry_core.engine.worker import Worker
from skerry_core.request import KVBlock
from skerry_core.runners.toy import ToyRunner

LENGTH = (BLOCKS_PER_STEP + 3) * BLOCK_SIZE + 5
NUM_BLOCKS = BLOCKS_PER_STEP + 6


def engine_with(length: int = LENGTH) -> Engine:
    """An engine that has computed the prompt of `request()`."""
    runner = ToyRunner(num_blocks=NUM_BLOCKS, vocab_size=VOCAB)
    engine = Engine(runner, EngineConfig(), model_key=b"toy")
    engine.add(request(prompt_length=length, max_tokens=1).sequence())
    run(engine)
    return engine


class Taken:
    """What was copied, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[int] = []
        self.blocks: list[KVBlock] = []
        self.is_last = False

    def __call__(self, blocks: tuple[KVBlock, ...], is_last: bool) -> None:
        assert not self.is_last
        self.pieces.append(len(blocks))
        self.blocks += blocks
        self.is_last = is_last


def test_blocks_are_copied_a_few_per_step_and_work_elsewhere() -> None:
    engine, taken = engine_with(), Taken()
    one = request(prompt_length=LENGTH, max_tokens=8)
    names = names_of(engine, one)
    engine.exports.add(names, taken)
    assert engine.has_work
    run(engine)
    assert taken.pieces == [BLOCKS_PER_STEP, 3]
    assert [block.digest for block in taken.blocks] == names
    assert taken.is_last

    other = engine_with(length=1)
    answers = run_with(other, tuple(taken.blocks))
    assert answers == LENGTH // BLOCK_SIZE * BLOCK_SIZE


def run_with(engine: Engine, blocks: tuple[KVBlock, ...]) -> int:
    """Answer with blocks that came along; tokens that were cached."""
    one = request("other", prompt_length=LENGTH, max_tokens=8, kv=blocks)
    engine.add(one.sequence())
    answer = run(engine)["other"]
    assert answer == expected(request("other", prompt_length=LENGTH, max_tokens=8))
    assert answer.usage is not None
    return answer.usage.cached_tokens


def test_what_is_missing_ends_it() -> None:
    engine, taken = engine_with(), Taken()
    names = names_of(engine, request(prompt_length=LENGTH))
    engine.exports.add([*names[:2], b"?" * 16, *names[2:]], taken)
    run(engine)
    assert [block.digest for block in taken.blocks] == names[:2]
    nothing = Taken()
    engine.exports.add([b"?" * 16], nothing)
    run(engine)
    assert (nothing.pieces, nothing.is_last) == ([0], True)


def test_blocks_are_not_evicted_before_they_are_copied() -> None:
    engine, taken = engine_with(), Taken()
    names = names_of(engine, request(prompt_length=LENGTH))
    engine.exports.add(names, taken)
    engine.step()
    assert engine.pool.num_used == len(names)
    engine.add(request("big", prompt_length=5 * BLOCK_SIZE, salt=3, max_tokens=1).sequence())
    run(engine)
    assert [block.digest for block in taken.blocks] == names
    assert engine.pool.num_used == 0


def test_what_is_removed_is_free_and_the_others_go_on() -> None:
    engine, removed, taken = engine_with(), Taken(), Taken()
    names = names_of(engine, request(prompt_length=LENGTH))
    engine.exports.add(names, removed)
    engine.exports.add(names[:1], taken)
    engine.step()
    engine.exports.remove(removed)
    engine.exports.remove(removed)  # unknown by now
    assert engine.pool.num_used == 1
    run(engine)
    assert (removed.pieces, removed.is_last) == ([BLOCKS_PER_STEP], False)
    assert (taken.pieces, taken.is_last) == ([1], True)
    assert engine.pool.num_used == 0


def test_a_worker_copies_while_it_is_idle_and_ends_what_is_open() -> None:
    client, taken = Client(), Taken()
    engine = engine_with()
    worker = Worker(engine, deliver=client.deliver, failed=client.failed)
    names = names_of(engine, request(prompt_length=LENGTH))
    worker.between_steps(lambda engine: engine.exports.add(names, taken))
    worker.start()
    worker.submit(request("next", prompt_length=10, salt=9).sequence())
    assert client.wait_for(1) == {"next"}
    assert [block.digest for block in taken.blocks] == names
    late = Taken()
    worker.between_steps(lambda engine: engine.exports.add(names, late))
    worker.close()
    assert late.is_last
    worker.between_steps(lambda engine: engine.exports.add(names, late))  # comes to nothing


class Fed(LaggingRunner):
    """Notes in which order it does what, as `PipelinedRunner` does."""

    def launch(self, batch: ForwardBatch) -> None:
        super().launch(batch)
        self.calls[-1] = f"L{batch.num_tokens}"

    def collect(self) -> StepResult:
        result = super().collect()
        self.calls[-1] = "C"
        return result

    def export_block(self, block: int) -> NDArray[np.generic]:
        self.calls.append("x")
        return super().export_block(block)


def test_blocks_of_a_chunk_leave_while_the_next_is_computed() -> None:
    """On a node that prefills, as it hands over a prompt of 30 blocks and a half."""
    runner = Fed(num_blocks=64)
    engine, given = engine_over(runner), {"r": Given()}
    one = request(prompt_length=30 * BLOCK_SIZE + 30, max_tokens=1, exports_kv=True)
    engine.add(one.sequence())
    while engine.has_work:
        step_on(engine, given)
    out = ["C", *["x"] * 8]
    assert runner.calls == [
        "L512", "L512", *out, "L512", *out, "L414", *out, "C", *["x"] * 7,
    ]  # fmt: skip
    assert given["r"].holds() == undivided(one)


def test_one_of_four_that_hands_over_leaves_no_gap() -> None:
    runner = Fed(num_blocks=64)
    engine = engine_over(runner)
    requests = [
        request(str(i), 100, i, max_tokens=6, exports_kv=not i, tenant=str(i)) for i in range(4)
    ]
    given = {each.id: Given() for each in requests}
    for each in requests:
        engine.add(each.sequence())
    while engine.has_work:
        step_on(engine, given)
    ahead = ["L4", "C"] * 5
    assert runner.calls == ["L400", *ahead[:2], "x", "x", *ahead[2:], "C"]
    for each in requests:
        assert given[each.id].holds() == undivided(each)


def test_cached_blocks_leave_while_a_step_is_under_way() -> None:
    runner = Fed(num_blocks=64)
    engine = engine_over(runner)
    cached = request("cached", 10 * BLOCK_SIZE, max_tokens=1)
    engine.add(cached.sequence())
    run(engine)
    runner.calls.clear()
    taken: list[KVBlock] = []
    engine.exports.add(names_of(engine, cached), lambda blocks, is_last: taken.extend(blocks))
    engine.add(request(max_tokens=4).sequence())
    run(engine)
    assert runner.calls == ["L10", *["x"] * 8, "L1", "x", "C", "L1", "C", "L1", "C", "C"]
    assert [block.digest for block in taken] == names_of(engine, cached)
