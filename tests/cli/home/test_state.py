"""SKERRY_HOME: private files, one platform at a time, and what `kill -9` leaves behind."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from skerry_cli.home.errors import StateError
from skerry_cli.home.instance import AlreadyRunning, Instance, announce, claim, running
from skerry_cli.home.keys import cluster_key, control_key, secret
from skerry_cli.home.state import Config, Home, read_config, write_config

HOLDER = """
import sys, time
from pathlib import Path
from skerry_cli.home.instance import claim
from skerry_cli.home.state import Home
with claim(Home(Path(sys.argv[1]))) as control:
    Path(control).touch()
    print(control, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    return home


def hold(home: Home) -> tuple[subprocess.Popen[str], str]:
    """Another process that has claimed the home, and its status socket's path."""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str], number: signal.Signals | None = None) -> None:
    if number is not None:
        process.send_signal(number)
    process.communicate()  # end of its input is how it ends by itself


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_home_comes_from_the_environment(tmp_path: Path) -> None:
    assert Home.from_environ({"SKERRY_HOME": str(tmp_path)}).root == tmp_path
    assert Home.from_environ({}).root == Path.home() / ".skerry"
    assert Home.from_environ({"SKERRY_HOME": ""}).root == Path.home() / ".skerry"


def test_a_home_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="Set SKERRY_HOME to a folder"):
        Home(tmp_path / "file" / "home").create()


def test_the_home_and_its_secrets_are_private(home: Home) -> None:
    write_config(home, Config(url="http://127.0.0.1:1", account_id="a", api_token="t"))
    assert secret(home) != control_key(home), "edges elsewhere are given the first"
    assert mode(home.root) == 0o700
    assert mode(home.config) == mode(home.secret) == mode(home.control_key) == 0o600


def test_the_secret_is_drawn_once(home: Home) -> None:
    first = secret(home)
    assert len(first) == 32
    assert secret(home) == first
    home.secret.write_bytes(b"short")
    with pytest.raises(StateError, match="damaged"):
        secret(home)


def test_config_round_trip_and_damage(home: Home) -> None:
    assert read_config(home) is None
    config = Config(url="http://127.0.0.1:1", account_id="a", api_token="t")
    write_config(home, config)
    assert read_config(home) == config
    for damage in (b"{", b"[]", b'{"url": 3}', b"\xff", b"[" * 30_000):
        home.config.write_bytes(damage)
        with pytest.raises(StateError, match=r"config\.json is damaged"):
            read_config(home)


def test_one_platform_at_a_time(home: Home) -> None:
    process, control = hold(home)
    try:
        instance = running(home)
        assert instance == Instance(pid=process.pid, control=control)
        with pytest.raises(AlreadyRunning) as caught, claim(home):
            pass
        assert caught.value.instance == instance
    finally:
        end(process)
    assert running(home) is None
    assert sorted(path.name for path in home.run.iterdir()) == ["skerry.lock"]


def test_a_killed_platform_is_not_running_and_its_remains_are_cleared(home: Home) -> None:
    process, control = hold(home)
    end(process, signal.SIGKILL)
    assert home.instance.exists()
    assert running(home) is None
    with claim(home) as ours:
        assert running(home) == Instance(pid=os.getpid(), control=ours)
        announce(home, Instance(pid=os.getpid(), control=ours, ready=True, url="http://x"))
        assert running(home) == Instance(os.getpid(), ours, True, "http://x")
        assert not Path(control).exists()
    assert running(home) is None


def test_a_deep_home_still_gets_a_status_socket(tmp_path: Path) -> None:
    home = Home(tmp_path / ("deep" * 30))
    with claim(home) as control:
        folder = Path(control).parent
        assert folder != home.run
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(control)
    assert not folder.exists()


def test_the_cluster_key_is_drawn_once_and_its_owners_only(tmp_path: Path) -> None:
    home = Home(tmp_path)
    key = cluster_key(home)
    assert len(key) == 32
    assert cluster_key(Home(tmp_path)) == key
    assert stat.S_IMODE(home.cluster_key.stat().st_mode) == 0o600
    assert key != secret(home)
    home.cluster_key.chmod(0o640)
    with pytest.raises(StateError, match="Others may read"):
        cluster_key(home)


def test_a_config_that_is_there_already_is_not_written(tmp_path: Path) -> None:
    """On a full disk nothing can be: `skerry up` starts all the same."""
    home = Home(tmp_path)
    config = Config(url="http://127.0.0.1:1", account_id="0" * 32, api_token="t")
    write_config(home, config)
    before = home.config.stat()
    write_config(home, config)
    assert home.config.stat().st_ino == before.st_ino, "the very same file"
    write_config(home, Config(url="http://127.0.0.1:2", account_id="0" * 32, api_token="t"))
    assert home.config.stat().st_ino != before.st_ino
