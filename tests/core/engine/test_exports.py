"""Cached blocks copied out for others: in order, a few per step, pinned until they are copied."""

from __future__ import annotations

from tests.core.engine.test_worker import Client
from tests.core.toy_oracle import VOCAB, expected, names_of, request, run

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
