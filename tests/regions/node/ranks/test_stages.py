"""Ranks that another machine serves: over TLS, from its own store, and for its own platform."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.core.runners.runner_suite import answers_of, requests_with_shared_prefix
from tests.e2e.small_model import NAME, home_with, write_small_model
from tests.regions.node.ranks.rank_streams import serving, stage_command
from tests.regions.wire.tls_links import KEY, Machines

from skerry_core.config import ConfigError
from skerry_core.engine.engine import Engine
from skerry_core.ranks import Parallel, RankLost
from skerry_core.runner import RunnerSetup, WantedSizes
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import ModelNotInstalled
from skerry_regions.models.store import ModelStore
from skerry_regions.node.engines import EngineOptions, open_engine
from skerry_regions.node.ranks import stage_server
from skerry_regions.node.ranks.channel import SocketChannel
from skerry_regions.node.ranks.order import OwnFiles, RankOrder, StoredModel
from skerry_regions.node.ranks.order import encode as encode_order
from skerry_regions.node.ranks.stage_server import StageServer
from skerry_regions.node.ranks.stages import StageRanks, _open, _stored, stage_address
from skerry_regions.wire.link_auth import LinkCredentials
from skerry_regions.wire.link_certificates import LinkCertificates
from skerry_regions.wire.link_files import LinkFiles
from skerry_regions.wire.link_key import LinkRefused

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of both machines: a small model, and certificates."""
    folder = tmp_path_factory.mktemp("stages")
    skerry = home_with(write_small_model(folder / "small"), folder / "home")
    (skerry.home / "machine").symlink_to(Machines(folder / "authority").issue("m", "node"))
    return skerry.home


@pytest.fixture(scope="module")
def credentials(home: Path) -> LinkCredentials:
    return LinkCredentials(certificates=LinkCertificates(LinkFiles.joined(home / "machine")))


@pytest.fixture
def machine(home: Path, credentials: LinkCredentials) -> Iterator[tuple[StageServer, str]]:
    """A machine that serves a rank, and where."""
    with serving(credentials, stage_command(home)) as (server, at):
        yield server, f"{at.host}:{at.port}"


def files_of(home: Path) -> ModelFiles:
    return ModelStore(home).open(Catalog.load(home).resolve(NAME))


def opened(home: Path, credentials: LinkCredentials, *stages: str) -> Engine:
    return open_engine(
        Catalog.load(home).resolve(NAME), files_of(home), runner="numba",
        options=EngineOptions(
            num_blocks=24, parallel=Parallel(pipeline=len(stages) + 1), stages=stages
        ),
        threads=1, cache_dir=home / "cache", credentials=credentials,
        progress=lambda what, share: None,
    )  # fmt: skip


def setup(home: Path, rank: int = 1, pipeline: int = 2) -> RunnerSetup:
    return RunnerSetup(
        weights=files_of(home).weights, vocab_size=257, max_context=512,
        sizes=WantedSizes(num_blocks=4), threads=1, cache_dir=home / "cache",
        progress=lambda what, share: None, parallel=Parallel(pipeline=pipeline), rank=rank,
    )  # fmt: skip


def ranks_at(home: Path, credentials: LinkCredentials, at: str, silence: float = 30) -> StageRanks:
    model = StoredModel(id=NAME, weights_digest=files_of(home).weights_digest, stages=(at,))
    return StageRanks("numba", model=model, credentials=credentials, silence_seconds=silence)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_model_over_two_machines_answers_as_on_one(
    home: Path,
    credentials: LinkCredentials,
    machine: tuple[StageServer, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The rank ends with its node's engine; there is room for the next one then."""
    server, at = machine
    whole, requests = opened(home, credentials), requests_with_shared_prefix()
    expected = answers_of(whole, requests)
    whole.runner.close()
    with caplog.at_level(logging.INFO, "skerry_core"):
        divided = opened(home, credentials, at)
    assert "rank 0 sends such a step on in 0." in caplog.text
    assert len(server.ranks) == 1
    assert divided.runner.numeric_build == whole.runner.numeric_build
    with pytest.raises(ConfigError, match="does not start: 1 ranks are served there"):
        opened(home, credentials, at)
    assert answers_of(divided, requests) == expected
    divided.runner.close()
    wait_until(lambda: not server.ranks)


@pytest.mark.slow
def test_a_rank_elsewhere_has_the_next_one_started(tmp_path: Path) -> None:
    """Over three machines, by the certificate of the one in the middle."""
    skerry = home_with(write_small_model(tmp_path / "small", layers=3), tmp_path / "home")
    home = skerry.home
    (home / "machine").symlink_to(Machines(tmp_path / "authority").issue("m", "node"))
    mine = LinkCredentials(certificates=LinkCertificates(LinkFiles.joined(home / "machine")))
    requests, answers = requests_with_shared_prefix(), list[object]()
    with serving(mine, stage_command(home), most=2) as (server, at):
        for stages in ((), (f"{at.host}:{at.port}",) * 2):
            engine = opened(home, mine, *stages)
            assert len(server.ranks) == len(stages)
            answers.append(answers_of(engine, requests))
            engine.runner.close()
        wait_until(lambda: not server.ranks)
    assert answers[0] == answers[1]


# --- what ends -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("signal_", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_elsewhere_that_dies_or_is_stopped_is_lost(
    home: Path, credentials: LinkCredentials, machine: tuple[StageServer, str],
    monkeypatch: pytest.MonkeyPatch, signal_: signal.Signals,
) -> None:  # fmt: skip
    """Its process is ended also where it cannot, and the next one is served."""
    monkeypatch.setattr(stage_server, "END_SECONDS", 0.1)
    server, at = machine
    ranks = ranks_at(home, credentials, at, silence=2.0)
    lost = queue.Queue[RankLost]()
    ranks.when_lost(lost.put)
    channel = ranks.start(setup(home))
    (pid,) = server.ranks
    os.kill(pid, signal_)
    why = "nothing came for 2 seconds" if signal_ == signal.SIGSTOP else "the connection has ended"
    assert str(lost.get(timeout=60)) == f"rank 1 at {at} is lost: {why}"
    channel.close()
    wait_until(lambda: not server.ranks)
    assert not Path(f"/proc/{pid}").exists()
    opened(home, credentials, at).runner.close()


@pytest.mark.slow
def test_a_rank_elsewhere_ends_with_its_node(home: Path, machine: tuple[StageServer, str]) -> None:
    """However that ends: here by SIGKILL."""
    server, at = machine
    script = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.regions.node.ranks.test_stages import *\n"
        "home = Path(sys.argv[1])\n"
        "files = LinkFiles.joined(home / 'machine')\n"
        "mine = LinkCredentials(certificates=LinkCertificates(files))\n"
        "channel = ranks_at(home, mine, sys.argv[2]).start(setup(home))\n"
        "channel.receive()\n"
        "print('paced', flush=True)\n"
        "time.sleep(600)\n"
    )
    node = subprocess.Popen(
        [sys.executable, "-c", script, str(home), at], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert node.stdout is not None
    assert node.stdout.readline() == "paced\n"
    assert len(server.ranks) == 1
    node.kill()
    node.wait()
    node.stdout.close()
    wait_until(lambda: not server.ranks)


# --- who is refused ------------------------------------------------------------------------------


def test_strangers_start_nothing(tmp_path: Path) -> None:
    """Machines of another authority, those that run no node, and whoever has none or speaks in the
    clear: no process is started for them."""
    ours, others = Machines(tmp_path / "ours"), Machines(tmp_path / "others")
    started = list[int]()

    def command(descriptor: int) -> list[str]:
        started.append(descriptor)
        return SLEEP

    strangers = [others.of("a", "node"), ours.of("e", "edge"), KEY]
    with serving(ours.of("s", "node"), command) as (_, at):
        for stranger in strangers:
            with pytest.raises(OSError, match=r"TLS|refused|closed|reset"):
                _open(at, stranger)
        with socket.create_connection((at.host, at.port), 60) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while plain.recv(4096):
                pass
    assert started == []
    with (
        serving(others.of("s", "node"), command) as (_, at),
        pytest.raises(OSError, match=r"certificate verify failed|unable to get|self.signed"),
    ):
        _open(at, ours.of("n", "node"))
    assert started == []


def test_beyond_loopback_there_are_certificates_or_nothing(home: Path) -> None:
    far = "192.0.2.1:8795"
    with pytest.raises(RankLost, match="links between machines are encrypted, and this machine"):
        ranks_at(home, KEY, far).start(setup(home))
    listening = StageServer(lambda descriptor: SLEEP, most=1)
    with pytest.raises(LinkRefused, match="links between machines are encrypted"):
        asyncio.run(listening.listen(stage_address(far), KEY))


def test_a_machine_that_is_not_there(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(RankLost, match=rf"rank 1 at 127.0.0.1:{port} does not start: .*refused"):
        ranks_at(home, KEY, f"127.0.0.1:{port}").start(setup(home))


# --- what is refused -----------------------------------------------------------------------------


def test_an_order_names_a_model_of_the_machines_own_store(home: Path, tmp_path: Path) -> None:
    digest = files_of(home).weights_digest
    said = StoredModel(id=NAME, weights_digest=digest, stages=("b:1",))

    def stored(of: StoredModel | None, at: Path = home, rank: int = 1) -> object:
        order = RankOrder.to("numba", setup(home, rank=rank), of)
        return _stored(order, at, 3, lambda what, share: None)

    assert stored(said) == OwnFiles(str(files_of(home).weights), str(home / "cache"), 3)
    with pytest.raises(ConfigError, match="has files of its own machine alone"):
        stored(None)
    with pytest.raises(ConfigError, match="1 stages for rank 2"):
        stored(said, rank=2)
    with pytest.raises(ConfigError, match=rf"{NAME} has other weights here .*skerry models pull"):
        stored(replace(said, weights_digest="0" * 32))
    with pytest.raises(ModelNotInstalled, match="run `skerry models pull"):
        stored(replace(said, id="@cf/huggingfacetb/smollm2-135m-instruct"), tmp_path)


@pytest.mark.slow
def test_what_a_rank_refuses_is_reported_to_its_node(
    home: Path, credentials: LinkCredentials, machine: tuple[StageServer, str]
) -> None:
    _, at = machine
    for sent, why in (
        (b"no order", "JSON|msgpack|malformed|invalid|Expected"),
        (encode_order(RankOrder.to("numba", setup(home))), "has files of its own machine alone"),
    ):
        channel = SocketChannel(_open(stage_address(at), credentials), "rank 1")
        channel.send(sent)
        with pytest.raises(RankLost, match=rf"^{at}: .*({why})"):
            channel.receive()
        channel.close()
