"""A keeper forks one node, which lives no longer than it; never two of a name on a machine."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.e2e.command import ROOT, is_alive, until

from skerry_regions.control.reconcile.ray.keeper import WAITING
from skerry_regions.control.reconcile.ray.ray_messages import KeeperState

NODE = """
import json, os, signal, socket, sys, time
def note(what):
    with open(os.environ["SKERRY_HOME"] + "/notes", "a") as notes:
        notes.write(f"{what} {os.getpid()}\\n")
def end(number, frame):
    note("ends")
    time.sleep(float(os.environ.get("NODE_LINGERS", "0")))
    note("ended")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
note("runs")
with open(os.environ["SKERRY_HOME"] + "/environ.json", "w") as file:
    json.dump({**os.environ}, file)
lifeline = socket.socket(fileno=int(sys.argv[1]))
lifeline.sendall(b'{"what": "model", "share": 0.5}\\n{"ready": {}}\\n')
while True:
    time.sleep(60)
"""


class Kept:
    """A keeper in a process of its own."""

    def __init__(self, home: Path, environ: dict[str, str], host: str) -> None:
        self.home = home
        folders = ("edge", "core", "regions", "sdk", "")
        roots = os.pathsep.join(str(ROOT / name) for name in folders)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.regions.control.ray.keeping", NODE, host],
            env=dict(os.environ) | {"PYTHONPATH": roots, "SKERRY_HOME": str(home)} | environ,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __call__(self, order: str, term: int = 1) -> KeeperState:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{order} {term}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return msgspec.json.decode(base64.b64decode(line), type=KeeperState)

    def ready(self) -> KeeperState:
        found: KeeperState = until(
            lambda: state if (state := self("state")).record.was_ready else None
        )
        return found

    def end(self) -> KeeperState:
        found: KeeperState = until(
            lambda: state if (state := self("state")).end is not None else None
        )
        return found


Keep = Callable[..., Kept]


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Keep]:
    started = list[Kept]()

    def begin(*, host: str = "127.0.0.1", **environ: str) -> Kept:
        started.append(Kept(tmp_path, environ, host))
        return started[-1]

    yield begin
    for each in started:
        each.process.kill()
        each.process.communicate()


def notes(home: Path) -> list[list[str]]:
    return [line.split() for line in (home / "notes").read_text().splitlines()]


def test_a_node_that_is_ready_drains_and_its_end_is_told(keep: Keep, tmp_path: Path) -> None:
    keeper = keep(RAY_AUTH_TOKEN="secret")
    state = keeper.ready()
    assert (state.end, state.record.draining_since, is_alive(state.pid)) == (None, None, True)
    assert (state.record.id, state.record.address) == ("fra-p-0", "tcp:127.0.0.1:0")
    environ = json.loads((tmp_path / "environ.json").read_text())
    assert [name for name in environ if name.startswith("RAY_")] == [], "Ray's token is not its"
    keeper("drain")
    state = keeper.end()
    assert state.end is not None
    assert (state.end.status, state.end.refused) == (0, "")
    assert state.record.draining_since is not None
    assert [what for what, _ in notes(tmp_path)] == ["runs", "ends", "ended"]


def test_a_node_dies_with_its_keeper(keep: Keep) -> None:
    keeper = keep()
    node = keeper.ready().pid
    keeper.process.kill()
    until(lambda: not is_alive(node))


def test_a_node_that_is_killed_is_told_with_its_status(keep: Keep) -> None:
    keeper = keep()
    os.kill(keeper.ready().pid, signal.SIGKILL)
    end = keeper.end().end
    assert end is not None
    assert end.status == -signal.SIGKILL
    assert end.log.endswith("/logs/fra-p-0.log")


def test_of_one_name_the_later_begins_when_the_earlier_has_ended(
    keep: Keep, tmp_path: Path
) -> None:
    first = keep(NODE_LINGERS="0.5").ready().pid
    second = keep().ready().pid
    assert notes(tmp_path) == [
        ["runs", str(first)], ["ends", str(first)], ["ended", str(first)], ["runs", str(second)],
    ]  # fmt: skip


def test_one_that_is_drained_before_it_begins_never_does(keep: Keep, tmp_path: Path) -> None:
    keep(NODE_LINGERS="60").ready()
    second = keep()
    second("drain")
    state = second.end()
    assert (state.pid, state.end and state.end.refused) == (0, "")
    assert [what for what, _ in notes(tmp_path) if what == "runs"] == ["runs"]


def test_nobody_of_a_term_that_is_over_drains_it(keep: Keep) -> None:
    keeper = keep()
    keeper.ready()
    assert keeper("state", 3).term == 3
    assert keeper("drain", 2).record.draining_since is None
    assert keeper("state", 1).term == 3
    assert keeper("drain", 3).record.draining_since is not None


def test_a_machine_with_an_open_address_runs_none(keep: Keep, tmp_path: Path) -> None:
    end = keep(host="9.9.9.9").end().end
    assert end is not None
    assert "open to the internet" in end.refused
    assert not (tmp_path / "notes").exists()


def test_a_node_whose_keeper_died_before_it_began_never_begins(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    told = tmp_path / "told"
    command = [sys.executable, "-c", f"open({str(told)!r}, 'w')"]
    with theirs:
        waiting = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", WAITING, str(theirs.fileno()), *command],
            pass_fds=[theirs.fileno()], stderr=subprocess.PIPE,
        )  # fmt: skip
    ours.close()
    _, said = waiting.communicate(timeout=60)
    assert (waiting.returncode, told.exists()) == (1, False)
    assert b"its keeper died" in said
