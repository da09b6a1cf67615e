"""An encoder on its thread: many requests at once, aborts, refusals and crashes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.core.random_encoders import KERNELS, write_encoder

from skerry_core.encoder import worker as encoder_worker
from skerry_core.encoder.encoder import Encoder
from skerry_core.encoder.worker import EncodeRequest, EncoderWorker
from skerry_core.request import EngineOverloaded, Priority, RequestRejected
from skerry_core.weights.tensors import Float32
from skerry_core.worker_thread import WorkerStopped


class Desk:
    """Takes what a worker says, and lets a test wait for it."""

    def __init__(self) -> None:
        self.vectors: dict[str, Float32] = {}
        self.errors: list[BaseException] = []
        self.changed = threading.Condition()

    def deliver(self, request_id: str, vectors: Float32) -> None:
        with self.changed:
            self.vectors[request_id] = vectors
            self.changed.notify_all()

    def failed(self, error: BaseException) -> None:
        with self.changed:
            self.errors.append(error)
            self.changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.vectors) + len(self.errors) >= count, 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def worker(folder: Path, desk: Desk) -> Iterator[EncoderWorker]:
    """Not started: what is submitted waits until a test starts it."""
    encoder = Encoder.open(folder, threads=1, cache_dir=KERNELS)
    worker = EncoderWorker(encoder, deliver=desk.deliver, failed=desk.failed)
    yield worker
    worker.close()


def request(
    id_: str, *lengths: int, normalize: bool = True, priority: Priority = Priority.INTERACTIVE
) -> EncodeRequest:
    texts = tuple(tuple(range(1, length + 1)) for length in lengths)
    return EncodeRequest(id=id_, texts=texts, normalize=normalize, priority=priority)


def test_requests_that_wait_run_together(worker: EncoderWorker, desk: Desk, folder: Path) -> None:
    requests = [request("a", 3, 9), request("b", 5, normalize=False), request("c", 70)]
    for each in requests:
        worker.submit(each)
    assert worker.statistics().waiting == 3
    worker.start()
    desk.wait_for(3)
    worker.close()
    assert worker.statistics() == encoder_worker.EncoderStatistics(turns=1, running=0, waiting=0)
    alone = Encoder.open(folder, threads=1, cache_dir=KERNELS)
    for each in requests:
        wanted = alone.encode(each.texts, normalize=each.normalize)
        np.testing.assert_array_equal(desk.vectors[each.id], wanted)
    alone.close()


def test_a_turn_is_bounded(
    worker: EncoderWorker, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_worker, "TURN_TOKENS", 10)
    for id_, length in (("a", 4), ("b", 6), ("c", 20), ("d", 1)):
        worker.submit(request(id_, length))
    worker.start()
    desk.wait_for(4)
    worker.close()
    assert worker.statistics().turns == 3  # a and b; c, which is longer than a turn; d


def test_interactive_requests_have_turns_before_batches(worker: EncoderWorker, desk: Desk) -> None:
    for id_ in ("batch-1", "batch-2"):
        worker.submit(request(id_, 8, priority=Priority.BATCH))
    worker.submit(request("a", 3))
    worker.abort("batch-1")
    assert worker.statistics().waiting == 3
    worker.start()
    desk.wait_for(2)
    worker.close()
    assert list(desk.vectors) == ["a", "batch-2"]
    assert worker.statistics().turns == 2  # not together, though both would fit


def test_what_is_aborted_in_time_gets_nothing(worker: EncoderWorker, desk: Desk) -> None:
    worker.submit(request("a", 3))
    worker.submit(request("b", 3))
    worker.abort("a")
    worker.abort("unknown")
    worker.start()
    desk.wait_for(1)
    worker.close()
    assert list(desk.vectors) == ["b"]


def test_too_much_at_once_is_refused_with_a_time(
    worker: EncoderWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_worker, "QUEUED_TOKENS", 10)
    worker.submit(request("a", 10))
    with pytest.raises(EngineOverloaded, match="10 tokens wait") as refusal:
        worker.submit(request("b", 1))
    assert refusal.value.retry_after == 1.0


@pytest.mark.parametrize("text", [(), (101,), (1,) * 71])
def test_a_text_that_does_not_fit_is_refused(worker: EncoderWorker, text: tuple[int, ...]) -> None:
    with pytest.raises(RequestRejected):
        worker.submit(EncodeRequest(id="a", texts=((1, 2), text)))


def test_a_crash_is_told_once_and_ends_it(
    worker: EncoderWorker, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object, **__: object) -> Float32:
        raise MemoryError("no room")

    monkeypatch.setattr(Encoder, "encode", crash)
    worker.submit(request("a", 3))
    worker.start()
    desk.wait_for(1)
    assert [str(error) for error in desk.errors] == ["no room"]
    with pytest.raises(WorkerStopped, match="crashed"):
        worker.submit(request("b", 3))


def test_a_closed_worker_takes_nothing(worker: EncoderWorker) -> None:
    worker.close()
    worker.close()
    with pytest.raises(WorkerStopped, match="closed"):
        worker.submit(request("a", 3))
