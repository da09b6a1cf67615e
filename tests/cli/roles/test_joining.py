"""`--join`: what a machine does before it serves, without serving."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from starlette.applications import Starlette
from tests.regions.control.joining import CLUSTER_KEY, POOL, Platform, platform

from skerry_cli import main
from skerry_cli.home import credentials, keys
from skerry_cli.home.credentials import CredentialsFollower
from skerry_cli.home.errors import StateError
from skerry_cli.home.state import Home
from skerry_cli.roles.control_join import duration
from skerry_cli.roles.joining import CannotJoin, OrderedRestart, assigned, enrolled, host_towards
from skerry_edge.http.server import listen, serve
from skerry_edge.limits import Limits
from skerry_regions.control.machines.calls import ControlAway
from skerry_regions.control.machines.messages import Credentials, EdgeAssignment, NodeAssignment
from skerry_regions.process.startup import stop_on_signals


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Platform]:
    with platform(tmp_path) as control:
        yield control


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create()
    return home


def arguments(control: Platform, **given: object) -> argparse.Namespace:
    values = {"join": control.url, "token": None, "token_file": None, "pool": None}
    return argparse.Namespace(**values | given)


def test_a_machine_joins_once(control: Platform, home: Home, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(control.token() + "\n")
    first = enrolled(arguments(control, token_file=tmp_path / "token"), home, "node")
    again = enrolled(arguments(control), home, "node")
    assert [machine.id for machine in control.machines.all()] == [first.machine]
    assert again.machine == first.machine
    assert home.cluster_key.read_bytes() == CLUSTER_KEY
    assert home.cluster_key.stat().st_mode & 0o777 == 0o600
    for link in (first, again):
        link.close()


def test_a_token_file_that_nobody_has_filled_is_named(
    control: Platform, home: Home, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises(CannotJoin, match="token is empty: write a join token into it"):
        enrolled(arguments(control, token_file=tmp_path / "token"), home, "node")


def test_the_token_may_be_in_the_environment(
    control: Platform, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CannotJoin, match="give --token-file, --token or SKERRY_JOIN_TOKEN"):
        enrolled(arguments(control), home, "node")
    monkeypatch.setenv("SKERRY_JOIN_TOKEN", control.token())
    enrolled(arguments(control), home, "node").close()


def test_a_home_of_another_platform_is_left_alone(control: Platform, home: Home) -> None:
    home.cluster_key.write_bytes(b"o" * 32)
    with pytest.raises(CannotJoin, match="is the home of another platform: give --home"):
        enrolled(arguments(control, token=control.token()), home, "node")
    assert home.cluster_key.read_bytes() == b"o" * 32


def test_a_home_belongs_to_the_machine_that_it_joined_as(control: Platform, home: Home) -> None:
    enrolled(arguments(control, token=control.token()), home, "node").close()
    with pytest.raises(CannotJoin, match=f"belongs to the node {POOL}-"):
        enrolled(arguments(control), home, "edge")
    with pytest.raises(CannotJoin, match="belongs to the node"):
        enrolled(arguments(control, join="https://127.0.0.1:1"), home, "node")


def test_a_cluster_key_that_changed_is_fetched_at_the_next_start(
    control: Platform, home: Home
) -> None:
    enrolled(arguments(control, token=control.token()), home, "node").close()
    home.cluster_key.write_bytes(b"before the rotation, 32 bytes ..")
    enrolled(arguments(control), home, "node").close()
    assert home.cluster_key.read_bytes() == CLUSTER_KEY


def test_a_machine_is_not_started_as_another_kind(control: Platform, home: Home) -> None:
    link = enrolled(arguments(control, token=control.token()), home, "node")
    assert assigned(link, NodeAssignment).settings.role == "decode"
    with pytest.raises(CannotJoin, match="another kind of assignment"):
        assigned(link, EdgeAssignment)
    link.close()


def test_an_edges_files_follow_the_control_plane(control: Platform, home: Home) -> None:
    token = control.token(region="fra", roles=["edge"])
    link = enrolled(arguments(control, token=token), home, "edge")
    with CredentialsFollower(link, home):
        assert (home.secret.read_bytes(), home.tokens.read_bytes()) == (b"r" * 32, b"{}")
        assert home.issuers.read_bytes() == b"issuers: []"
    assert home.tokens.stat().st_mode & 0o777 == 0o600
    link.close()


def test_an_edge_waits_for_the_platforms_secret(
    control: Platform, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "LOOK_SECONDS", 0.01)
    link = enrolled(arguments(control, token=control.token(region="fra")), home, "edge")
    call, failed = link.call, list[str]()

    def at_first_away(method: str, path: str, type_: type[Credentials]) -> Credentials:
        if len(failed) < 2:
            failed.append(path)
            raise ControlAway("it restarts")
        return call(method, path, type_)

    monkeypatch.setattr(link, "call", at_first_away)
    with CredentialsFollower(link, home):
        assert home.secret.read_bytes() == b"r" * 32
    link.close()


def test_a_full_disk_does_not_end_the_following(
    control: Platform, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "LOOK_SECONDS", 0.01)
    link = enrolled(arguments(control, token=control.token(region="fra")), home, "edge")
    followed, tries = threading.Event(), list[Path]()

    def full_once(path: Path, content: bytes) -> None:
        tries.append(path)
        if len(tries) == 3:  # the first reading wrote two
            raise StateError("Cannot write: No space left on device.")
        keys.keep_private(path, content)
        if len(tries) > 3:
            followed.set()

    monkeypatch.setattr(credentials, "keep_private", full_once)
    with CredentialsFollower(link, home):
        assert followed.wait(60)
    link.close()


def test_the_way_to_a_control_plane(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_towards("https://127.0.0.1:8789") == "127.0.0.1"

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # a resolver may take long to say so
    with pytest.raises(CannotJoin, match=r"https://nowhere\.invalid: Name or service not known"):
        host_towards("https://nowhere.invalid")


def test_only_the_first_order_to_renew_counts() -> None:
    orders, stopped = OrderedRestart(), list[int]()
    orders.started(lambda: stopped.append(1))
    for order in ("serve", "renew", "serve", "renew"):
        orders.take(order)
    assert (orders.is_to_renew, stopped) == (True, [1])


def test_a_machine_that_its_operator_stops_does_not_begin_anew() -> None:
    late, early = OrderedRestart(), OrderedRestart()
    late.take("renew")
    late.cancel()
    early.cancel()
    early.take("renew")
    assert not late.is_to_renew
    assert not early.is_to_renew


def test_a_signal_is_heard_where_an_edge_retires_already() -> None:
    orders = OrderedRestart()

    async def ordered_then_told() -> None:
        told, retire = stop_on_signals(orders.cancel), asyncio.Event()
        orders.started(retire.set)

        def ready() -> None:
            orders.take("renew")
            os.kill(os.getpid(), signal.SIGTERM)

        await serve(
            Starlette(),
            listener=listen("127.0.0.1", 0, limits := Limits()),
            limits=limits,
            ready=ready,
            stop=told,
            retire=retire,
        )
        async with asyncio.timeout(60):
            await told.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ordered_then_told())
    assert not orders.is_to_renew


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["node"], "give --id, --model, --address; or --join"),
        (["edge", "--id", "e"], "give --model; or --join"),
        (
            ["node", "--join", "https://h", "--id", "n", "--role", "decode"],
            "--id, --role and --join exclude",
        ),
        (
            ["edge", "--join", "https://h", "--region", "fra"],
            "--region and --join exclude each other",
        ),
    ],
)
def test_what_does_not_go_together(
    command: list[str],
    complaint: str,
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SKERRY_HOME", str(home.root))
    assert main(command) == 1
    assert complaint in capsys.readouterr().err


def test_durations() -> None:
    assert [duration(text) for text in ("90s", "30m", "12h", "7d")] == [90, 1800, 43200, 604800]
    for text in ("90", "0s", "1w", "-1s", "1.5h"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a time"):
            duration(text)
