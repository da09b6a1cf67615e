"""Channels between ranks, and what is refused of them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.core.runners.runner_suite import (
    CACHE,
    answers_of,
    requests_with_shared_prefix,
    write_model,
)
from tests.regions.node.test_engines import opened

from skerry.runners import MAX_RANKS, RUNNERS
from skerry_core.config import ConfigError
from skerry_core.engine.worker import Worker
from skerry_core.ranks import DividedRunner, Parallel, RankLost
from skerry_core.runner import RunnerSetup, WantedSizes
from skerry_core.runners.division import DivisionNeed, RankDevices
from skerry_core.runners.pipeline.pipeline_runner import PipelineRunner
from skerry_core.worker_thread import WorkerStopped
from skerry_regions.node.ranks.children import LocalRanks
from skerry_regions.node.ranks.order import OwnFiles, RankOrder, decode, encode
from skerry_regions.spec_types import EngineSpec, ParallelSpec
from skerry_regions.topology.loading import TopologyError, parse_topology


def setup(**changes: object) -> RunnerSetup:
    fields: dict[str, object] = {
        "weights": Path("/nowhere/model.gguf"), "vocab_size": 99, "max_context": 512,
        "sizes": WantedSizes(num_blocks=5), "threads": 2, "cache_dir": Path("/nowhere"),
        "progress": lambda what, share: None, "parallel": Parallel(pipeline=3), "rank": 1,
    }  # fmt: skip
    return RunnerSetup(**(fields | changes))  # type: ignore[arg-type]


def test_a_setup_crosses_to_its_rank() -> None:
    said = setup(floats="q8_0", kv="int8", parallel=Parallel(tensor=2, pipeline=3), rank=5)
    order = decode(memoryview(encode(RankOrder.to("torch", said))))
    ranks = LocalRanks("torch")
    assert isinstance(order.of, OwnFiles)
    there = order.setup(order.of, said.progress, ranks)
    for name in RunnerSetup.__slots__:
        assert getattr(there, name) == (ranks if name == "ranks" else getattr(said, name)), name


def test_a_rank_that_cannot_start_says_why() -> None:
    ranks = LocalRanks("toy")
    lost = threading.Event()
    ranks.when_lost(lambda error: lost.set())
    channel = ranks.start(setup())
    with pytest.raises(RankLost, match="the toy runner runs on one rank"):
        channel.receive()
    assert lost.wait(60)
    late = threading.Event()
    ranks.when_lost(lambda error: late.set())
    assert late.is_set()
    channel.close()


def test_a_rank_that_is_stopped_is_lost_and_ended() -> None:
    ranks = LocalRanks("numba", silence_seconds=1.0)
    lost = queue.Queue[RankLost]()
    ranks.when_lost(lost.put)
    before = ranks_of_this_process()
    stopped = ranks.start(setup())
    pid = rank_started_since(before)
    os.kill(pid, signal.SIGSTOP)
    assert str(lost.get(timeout=60)) == "rank 1 is lost: nothing came for 1 seconds"
    with pytest.raises(RankLost, match="nothing came"):
        stopped.receive()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    stopped.close()


def test_axes_are_those_of_the_kind() -> None:
    axes = {name: kind.axes for name, kind in RUNNERS.items()}
    assert axes == {
        "numba": ("pipeline",), "torch": ("tensor", "pipeline"), "jax": ("tensor",), "toy": (),
        "torch-deterministic": ("tensor", "pipeline"),
    }  # fmt: skip
    assert RUNNERS["jax"].lacking({"tensor": 2, "pipeline": 1}) is None
    assert RUNNERS["jax"].lacking({"tensor": 2, "pipeline": 2}) == "pipeline"
    assert Parallel.of(None, None) is None
    assert Parallel.of(2, None) == Parallel(tensor=2)
    assert Parallel(tensor=2, pipeline=3).num_ranks == 6
    with pytest.raises(ConfigError, match=r"parallel\.tensor must be at least 1, got 0"):
        Parallel(tensor=0)


@pytest.mark.parametrize(
    ("runner", "parallel", "message"),
    [
        ("numba", "{tensor: 2}", "the numba runner has no tensor parallelism"),
        ("jax", "{pipeline: 2}", "the jax runner has no pipeline parallelism"),
        ("torch", "{tensor: 64, pipeline: 2}", f"64 x 2 ranks are more than {MAX_RANKS}"),
        ("torch", "{tensor: 65}", "Expected `int` <= 64"),
        ("torch", "{data: 2}", "no such key"),
        ("torch", '{pipeline: 2, stages: ["a:1"]}', "ranks of the torch runner are of one machine"),
        ("numba", '{pipeline: 3, stages: ["a:1"]}', "1 of pipeline 3: each rank after the first"),
        ("numba", '{stages: ["a:1"]}', "1 of pipeline 1"),
        ("numba", '{pipeline: 2, stages: ["a"]}', "HOST:PORT, where a machine serves stages"),
        ("numba", '{pipeline: 2, stages: ["a:0"]}', "'a:0' has no port from 1 to 65535"),
        ("numba", '{pipeline: 2, stages: ["a:65536"]}', "'a:65536' has no port from 1 to 65535"),
    ],
)
def test_a_topology_says_where_its_ranks_are_wrong(
    runner: str, parallel: str, message: str
) -> None:
    text = (
        "regions: [{name: fra, iata: FRA}]\n"
        "pools:\n"
        f"  - {{name: p, region: fra, role: hybrid, model: m, runner: {runner},\n"
        f"     parallel: {parallel}}}\n"
    )
    with pytest.raises(TopologyError, match=r"topology:\d+: pools\[0\]\.parallel") as raised:
        parse_topology(text.encode())
    assert message in str(raised.value)


def test_one_rank_is_of_every_kind() -> None:
    for name in RUNNERS:
        assert EngineSpec(parallel=ParallelSpec()).parallel_mistake(name) is None


# --- a model in processes ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"), "llama")


def ranks_of_this_process() -> set[int]:
    """Pids of child processes that are ranks; those of tests before may be ending still."""
    ranks = set[int]()
    for pid in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"node.ranks.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                ranks.add(int(pid))
    return ranks


def rank_started_since(before: set[int]) -> int:
    """Return its pid; a process that has just started has no command line for some milliseconds:
    execve closes the pipe that `Popen` waits for before it maps the program."""
    wait_until(lambda: bool(ranks_of_this_process() - before))
    (pid,) = ranks_of_this_process() - before
    return pid


def test_a_model_in_two_processes_answers_as_in_one(weights: Path) -> None:
    whole, requests = opened(weights, "numba", floats="keep"), requests_with_shared_prefix()
    expected = answers_of(whole, requests)
    reported: list[str] = []
    before = ranks_of_this_process()
    divided = opened(
        weights, "numba", floats="keep", parallel=Parallel(pipeline=2),
        progress=lambda what, share: reported.append(what),
    )  # fmt: skip
    assert divided.runner.numeric_build == whole.runner.numeric_build
    assert answers_of(divided, requests) == expected
    pid = rank_started_since(before)
    divided.runner.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    whole.runner.close()


def test_a_rank_that_is_killed_fails_the_engine_at_once(weights: Path) -> None:
    """Also one that has nothing to do."""
    before = ranks_of_this_process()
    engine = opened(weights, "numba", floats="keep", parallel=Parallel(pipeline=2))
    failures = queue.Queue[BaseException]()
    worker = Worker(engine, deliver=lambda outputs: None, failed=failures.put)
    worker.start()
    pid = rank_started_since(before)
    os.kill(pid, signal.SIGKILL)
    error = failures.get(timeout=60)
    assert isinstance(error, RankLost)
    assert str(error) == "rank 1 is lost: the connection has ended"
    with pytest.raises(WorkerStopped, match="the engine crashed"):
        worker.submit(requests_with_shared_prefix()[0].sequence())
    worker.close()


def test_ranks_end_with_the_process_that_started_them(weights: Path) -> None:
    """However it ends: here by SIGKILL."""
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from skerry_core.ranks import Parallel\n"
        "from skerry_core.runner import RunnerSetup, WantedSizes\n"
        "from skerry_regions.node.ranks.children import LocalRanks\n"
        "setup = RunnerSetup(weights=Path(sys.argv[1]), vocab_size=1, max_context=1, threads=1,\n"
        "    sizes=WantedSizes(), cache_dir=Path(sys.argv[2]), progress=lambda *each: None,\n"
        "    parallel=Parallel(pipeline=2), rank=1)\n"
        "channel = LocalRanks('numba').start(setup)\n"
        "channel.receive()\n"  # its speed
        "print(Path(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read_text(), flush=True)\n"
        "time.sleep(600)\n"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", script, str(weights), str(CACHE)],
        stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert leader.stdout is not None
    pid = int(leader.stdout.readline())
    assert b"node.ranks.child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    leader.kill()
    leader.wait()
    leader.stdout.close()
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_axes_that_a_runner_lacks_are_refused_by_name(weights: Path) -> None:
    with pytest.raises(ConfigError, match="--tensor: the numba runner has no tensor parallelism"):
        opened(weights, "numba", parallel=Parallel(tensor=2))
    with pytest.raises(ConfigError, match="a model of 2 layers has no 3 stages"):
        opened(weights, "numba", floats="keep", parallel=Parallel(pipeline=3))


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_model_that_one_process_does_not_hold_is_divided(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = DivisionNeed(weights=1 << 30, kv=1 << 30, num_layers=2, num_kv_heads=2)
    there = RankDevices(memory=(3 << 29,) * 2, link=2e9)
    monkeypatch.setattr(PipelineRunner, "survey", lambda setup: (need, there))
    engine = opened(weights, "numba", floats="keep")
    assert isinstance(engine.runner, DividedRunner)
    assert engine.runner.ranks.form == (
        "tensor 1, pipeline 2: 1.0 GiB of weights and 1.0 GiB of KV do not fit one device with "
        "1.5 GiB free; 2 have some layers each"
    )
    engine.runner.close()
    whole = opened(weights, "numba", floats="keep", parallel=Parallel())
    assert not isinstance(whole.runner, DividedRunner)
    whole.runner.close()
