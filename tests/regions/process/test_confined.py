"""Work in a process that may be killed: bounded, alone, and the next message finds it whole."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from skerry_regions.process import confined
from skerry_regions.process.confined import ChildUnavailable, Confined, Exhausted


@pytest.fixture(scope="module")
def child() -> Iterator[Confined]:
    child = Confined("tests.regions.process.confined_work")
    yield child
    child.close()


def test_messages_are_answered(child: Confined) -> None:
    assert child.ask(b"abc") == b"cba"
    large = bytes(range(256)) * (1 << 12)
    assert child.ask(large) == large[::-1]


def test_threads_get_the_answers_to_their_own_messages(child: Confined) -> None:
    messages = [b"%04d" % number for number in range(80)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(child.ask, messages)) == [each[::-1] for each in messages]


@pytest.mark.parametrize("message", [b"spin", b"grow", b"fail", b"die"])
def test_a_message_dies_alone(child: Confined, message: bytes) -> None:
    child.start()
    before = child.pid
    with pytest.raises(Exhausted):
        child.ask(message)
    assert child.ask(b"abc") == b"cba"
    assert child.pid == before


def test_a_child_that_was_killed_costs_the_next_message_nothing(child: Confined) -> None:
    child.start()
    before = child.pid
    assert before is not None
    os.killpg(before, signal.SIGKILL)
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    assert child.ask(b"abc") == b"cba"
    assert child.pid != before


def test_each_message_has_a_process_of_its_own_below_everything_else(child: Confined) -> None:
    child.ask(b"kept?")
    first, second = (child.ask(b"where").split() for _ in range(2))
    assert first[0] == second[0] == b"19"
    assert first[1] != second[1]
    assert first[2] == second[2] == b"0"  # nothing of another message is there


def test_what_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Confined("tests.regions.process.confined_work")
    child.start()
    monkeypatch.setattr(confined, "WALL_SECONDS", 0.0)
    with pytest.raises(Exhausted):
        child.ask(b"spin")
    assert child.pid is None
    monkeypatch.undo()
    assert child.ask(b"abc") == b"cba"
    child.close()


def test_what_does_not_start() -> None:
    with pytest.raises(ChildUnavailable, match="does not start"):
        Confined("tests.regions.process.no_such_module").ask(b"abc")
