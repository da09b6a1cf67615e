"""What a node tells of its engine's load and speed, step by step on a clock of our own."""

from __future__ import annotations

import pytest
from bench.subjects.requests import Request, SamplingParams

from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runners.toy import ToyRunner
from skerry_regions.node.reporting import LOOK_SECONDS, Reporter
from skerry_regions.view import NodeLoad

NUM_BLOCKS = 32
STEP = 2.0  # seconds


class Bench:
    """An engine whose steps take two seconds, and its reporter."""

    def __init__(self) -> None:
        self.now = 100.0
        runner = ToyRunner(
            num_blocks=NUM_BLOCKS,
            vocab_size=251,
            max_context=1024,
            before_step=lambda _: self.work(),
        )
        config = EngineConfig(max_step_tokens=100)
        self.engine = Engine(runner, config, model_key=b"toy", clock=lambda: self.now)
        self.reporter = Reporter("n", 7, "m", self.engine, clock=lambda: self.now)

    def work(self) -> None:
        self.now += STEP

    def ask(self, id: str, prompt: int, max_tokens: int = 5) -> None:
        ids = tuple(range(prompt))
        self.engine.add(
            Request(
                id=id, prompt_ids=ids, sampling=SamplingParams(max_tokens=max_tokens)
            ).sequence()
        )

    def step(self) -> None:
        self.engine.step()
        self.reporter.take(self.reporter.after_step())


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_load_is_as_old_as_the_start_of_its_step(bench: Bench) -> None:
    bench.ask("a", 250)
    bench.now += 1.0
    bench.step()
    bench.now += 0.5
    told = bench.reporter.report()
    assert (told.load.prefill_tokens, told.load.streams) == (150, 0)
    assert told.load_age == STEP + 0.5
    bench.now += 3.0
    again = bench.reporter.report()
    assert (again.load, again.load_age) == (told.load, STEP + 3.5)


def test_before_its_first_step_ends_an_engine_tells_of_the_time_before(bench: Bench) -> None:
    bench.now += 10.0
    idle = bench.reporter.report()
    assert (idle.load, idle.load_age) == (NodeLoad(free_tokens=NUM_BLOCKS * 64), 0.0)
    bench.ask("a", 250)
    bench.now += 1.5
    told = bench.reporter.report()
    assert (told.load, told.load_age) == (idle.load, 1.5)


def test_an_engine_that_has_finished_has_no_load(bench: Bench) -> None:
    bench.ask("a", 100, max_tokens=1)
    bench.step()
    told = bench.reporter.report()
    assert (told.load.prefill_tokens, told.load.streams, told.load_age) == (0, 0, 0.0)


def test_what_steps_took_is_told_once(bench: Bench) -> None:
    bench.ask("a", 250)
    bench.step()
    first = bench.reporter.report().sample
    assert first is not None
    assert (first.steps, first.seconds, first.new_tokens) == (1, STEP, 100)
    bench.step()
    bench.step()
    sample = bench.reporter.report().sample
    assert sample is not None
    assert (sample.steps, sample.seconds, sample.new_tokens) == (2, 2 * STEP, 150)
    assert sample.attended == sum(range(101, 251))
    assert (sample.streams, sample.context) == (0, 0)
    bench.step()
    decode = bench.reporter.report().sample
    assert decode is not None
    assert (decode.steps, decode.new_tokens, decode.streams, decode.context) == (1, 0, 1, 251)
    assert bench.reporter.report().sample is None


def test_many_short_steps_are_looked_at_now_and_then(bench: Bench) -> None:
    bench.ask("a", 10, max_tokens=50)
    bench.step()
    news = bench.reporter.after_step()
    assert news.load is None
    bench.now += 2 * LOOK_SECONDS
    assert bench.reporter.after_step().load is not None


def test_a_queue_in_seconds_at_the_pace_of_the_steps_so_far(bench: Bench) -> None:
    assert bench.reporter.queue_seconds() == 0.0
    bench.ask("a", 250)
    bench.step()
    assert bench.reporter.queue_seconds() == 150 * STEP / 100
    for _ in range(8):
        bench.step()
    assert bench.reporter.queue_seconds() == 0.0
