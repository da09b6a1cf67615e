"""Real threads, and events instead of sleeps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest
from bench.subjects.requests import Request
from tests.core.toy_oracle import Answer, expected, request

from skerry_core.batch import ForwardBatch
from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.engine.worker import Worker
from skerry_core.request import EngineOverloaded, Output, RequestRejected
from skerry_core.runners.toy import ToyRunner
from skerry_core.worker_thread import WorkerStopped

TIMEOUT = 30.0  # seconds; only ever reached by a bug


class Gate:
    """Holds each step until it is opened, and tells when a step waits."""

    def __init__(self) -> None:
        self.waits = threading.Event()
        self.opened = threading.Event()
        self.error: BaseException | None = None

    def __call__(self, batch: ForwardBatch) -> None:
        self.waits.set()
        assert self.opened.wait(TIMEOUT)
        if self.error is not None:
            raise self.error


class Client:
    """What was delivered, and on which thread; `ended` gets each request's id at its end."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        self.ended: Queue[str] = Queue()
        self.failures: Queue[BaseException] = Queue()
        self.threads: set[str] = set()
        self.deliveries: list[list[Output]] = []

    def deliver(self, outputs: list[Output]) -> None:
        self.threads.add(threading.current_thread().name)
        self.deliveries.append(outputs)
        for output in outputs:
            self.answers.setdefault(output.request_id, Answer()).add(output)
            if output.finish_reason is not None:
                self.ended.put(output.request_id)

    def failed(self, error: BaseException) -> None:
        self.threads.add(threading.current_thread().name)
        self.failures.put(error)

    def wait_for(self, count: int) -> set[str]:
        return {self.ended.get(timeout=TIMEOUT) for _ in range(count)}


class Bench:
    """A worker on the toy model, its gate and its client."""

    def __init__(self, inbox_size: int = 1024) -> None:
        self.gate = Gate()
        self.client = Client()
        runner = ToyRunner(num_blocks=64, before_step=self.gate)
        self.engine = Engine(runner, EngineConfig(), model_key=b"toy")
        self.worker = Worker(
            self.engine,
            deliver=self.client.deliver,
            failed=self.client.failed,
            inbox_size=inbox_size,
        )


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.worker.start()
    yield bench
    bench.gate.opened.set()
    bench.worker.close()


def requests(count: int, **fields: Any) -> list[Request]:
    return [request(str(i), 5 + i, salt=i, tenant=str(i % 3), **fields) for i in range(count)]


def test_answers_come_from_the_engine_thread_in_one_call_per_step(bench: Bench) -> None:
    bench.gate.opened.set()
    all_requests = requests(10, max_tokens=20)
    for one in all_requests:
        bench.worker.submit(one.sequence())
    bench.client.wait_for(10)
    for one in all_requests:
        assert bench.client.answers[one.id] == expected(one)
    assert bench.client.threads == {"skerry-engine"}
    bench.worker.close()
    assert len(bench.client.deliveries) <= bench.worker.statistics().steps
    assert bench.engine.pool.num_used == 0


def test_many_threads_may_submit_and_abort(bench: Bench) -> None:
    bench.gate.opened.set()
    barrier = threading.Barrier(4)
    all_requests = [
        [request(f"{t}-{i}", 20, salt=t, max_tokens=15, tenant=str(t)) for i in range(10)]
        for t in range(4)
    ]

    def client(own: list[Request]) -> None:
        barrier.wait(TIMEOUT)
        for i, one in enumerate(own):
            bench.worker.submit(one.sequence())
            if i % 3 == 0:
                bench.worker.abort(one.id)

    threads = [threading.Thread(target=client, args=(own,)) for own in all_requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    ended = bench.client.wait_for(40)
    assert ended == {one.id for own in all_requests for one in own}
    for one in (one for own in all_requests for one in own):
        answer, whole = bench.client.answers[one.id], expected(one)
        assert answer.token_ids == whole.token_ids[: len(answer.token_ids)]
        assert answer.finish_reason == "cancelled" or answer == whole
    bench.worker.close()
    assert bench.engine.pool.num_used == 0


def test_abort_during_a_step_takes_effect_before_the_next(bench: Bench) -> None:
    bench.worker.submit(request().sequence())
    assert bench.gate.waits.wait(TIMEOUT)
    bench.worker.abort("r")
    bench.gate.opened.set()
    assert bench.client.wait_for(1) == {"r"}
    answer = bench.client.answers["r"]
    assert (len(answer.token_ids), answer.finish_reason) == (1, "cancelled")
    bench.worker.close()
    assert bench.worker.statistics().steps == 1


def test_abort_before_the_first_step_runs_nothing(bench: Bench) -> None:
    bench.worker.submit(request("first", max_tokens=1).sequence())
    assert bench.gate.waits.wait(TIMEOUT)
    bench.worker.submit(request("second").sequence())
    bench.worker.abort("second")
    bench.worker.abort("unknown")
    bench.gate.opened.set()
    assert bench.client.wait_for(2) == {"first", "second"}
    assert bench.client.answers["second"] == Answer(finish_reason="cancelled")


def test_a_full_inbox_and_a_wrong_request_are_refused_at_once() -> None:
    bench = Bench(inbox_size=2)
    bench.worker.submit(request("a").sequence())
    with pytest.raises(RequestRejected, match="in use"):
        bench.worker.submit(request("a").sequence())
    with pytest.raises(RequestRejected, match="no tokens"):
        bench.worker.submit(request("b", prompt_ids=()).sequence())
    bench.worker.submit(request("b").sequence())
    with pytest.raises(EngineOverloaded, match="2 requests") as raised:
        bench.worker.submit(request("c").sequence())
    assert raised.value.retry_after > 0
    bench.gate.opened.set()
    bench.worker.start()
    assert bench.client.wait_for(2) == {"a", "b"}
    bench.worker.submit(request("c").sequence())
    assert bench.client.wait_for(1) == {"c"}
    bench.worker.close()


def test_statistics_do_not_wait_for_the_step(bench: Bench) -> None:
    bench.worker.submit(request().sequence())
    assert bench.gate.waits.wait(TIMEOUT)
    now = bench.worker.statistics()
    assert (now.running, now.steps) == (1, 0)


def test_a_crash_is_told_once_and_later_submits_raise(bench: Bench) -> None:
    bench.gate.error = ZeroDivisionError("a bug in a kernel")
    bench.worker.submit(request().sequence())
    assert bench.gate.waits.wait(TIMEOUT)
    bench.gate.opened.set()
    error = bench.client.failures.get(timeout=TIMEOUT)
    assert error is bench.gate.error
    with pytest.raises(WorkerStopped, match="crashed") as raised:
        bench.worker.submit(request("later").sequence())
    assert raised.value.__cause__ is error
    bench.worker.abort("r")
    bench.worker.close()
    assert bench.client.failures.empty()
    assert bench.client.answers == {}


def test_a_callback_that_raises_is_a_crash(bench: Bench) -> None:
    def deliver(outputs: list[Output]) -> None:
        raise BrokenPipeError

    runner = ToyRunner(num_blocks=8)
    engine = Engine(runner, EngineConfig(), model_key=b"toy")
    worker = Worker(engine, deliver=deliver, failed=bench.client.failed)
    worker.start()
    worker.submit(request().sequence())
    assert isinstance(bench.client.failures.get(timeout=TIMEOUT), BrokenPipeError)
    worker.close()


def test_close_cancels_what_is_left_and_is_idempotent(bench: Bench) -> None:
    for one in requests(3, max_tokens=1000):
        bench.worker.submit(one.sequence())
    assert bench.gate.waits.wait(TIMEOUT)
    late = request("late")
    bench.worker.submit(late.sequence())
    closing = threading.Thread(target=bench.worker.close)
    closing.start()
    bench.gate.opened.set()
    closing.join(TIMEOUT)
    assert not closing.is_alive()
    assert {a.finish_reason for a in bench.client.answers.values()} == {"cancelled"}
    assert set(bench.client.answers) == {"0", "1", "2", "late"}
    assert bench.engine.pool.num_used == 0
    with pytest.raises(WorkerStopped, match="closed"):
        bench.worker.submit(request("later").sequence())
    bench.worker.close()


def test_a_worker_that_never_started_closes() -> None:
    bench = Bench()
    bench.worker.close()
    with pytest.raises(WorkerStopped):
        bench.worker.submit(request().sequence())
