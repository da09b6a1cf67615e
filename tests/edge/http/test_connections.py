"""The places of a listener: who gives one up, for whom, and what is left for probes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_edge.http.connections import ConnectionTable, network_of


class Caller:
    """A connection that notes when its place was taken."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.is_closed = False

    def give_up(self) -> None:
        assert not self.is_closed
        self.is_closed = True


def num_held(table: ConnectionTable) -> int:
    return len(table._network_of) + len(table._probes)


def filled(
    size: int, networks: list[str], reserve: int = 2
) -> tuple[ConnectionTable, list[Caller]]:
    table = ConnectionTable(size, reserve)
    callers = [Caller(network) for network in networks]
    for caller in callers:
        assert table.admit(caller, caller.name) == "any"
    return table, callers


def test_the_longest_idle_gives_its_place() -> None:
    table, callers = filled(4, ["a", "b", "c", "d"])
    table.work(callers[0])
    table.wait(callers[0])
    assert table.admit(Caller(), "e") == "any"
    assert [each.is_closed for each in callers] == [False, True, False, False]
    assert num_held(table) == 4


def test_a_crowded_network_gives_first() -> None:
    table, callers = filled(16, ["quiet", *["crowd"] * 15])
    for number in range(10):
        assert table.admit(Caller(), f"new {number}") == "any"
    assert not callers[0].is_closed
    assert sum(each.is_closed for each in callers) == 10


def test_a_crowd_that_sends_slowly_gives_to_others_and_not_to_itself() -> None:
    table, callers = filled(16, ["crowd"] * 16)
    for caller in callers:
        table.receive(caller)
    assert table.admit(Caller(), "new") == "any"
    assert callers[0].is_closed
    for caller in callers[1:]:
        table.work(caller)
    assert table.admit(Caller(), "crowd") == "any"  # the newcomer from before was idle
    for _ in range(2):
        table.admit(Caller(), "crowd")


def test_what_is_answered_stays_and_probes_have_places_of_their_own() -> None:
    table, callers = filled(4, ["a"] * 4)
    for caller in callers:
        table.work(caller)
    probes = [Caller() for _ in range(3)]
    assert [table.admit(probe, "b") for probe in probes] == ["probe"] * 3
    assert [probe.is_closed for probe in probes] == [True, False, False]
    table.release(probes[1])
    assert not any(caller.is_closed for caller in callers)
    assert num_held(table) == 5


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["admit", "wait", "receive", "work", "release"]),
              st.integers(0, 30), st.sampled_from("abcdef")), max_size=200,
)  # fmt: skip


@given(OPERATIONS)
def test_no_order_of_events_loses_a_place(steps: list[tuple[str, int, str]]) -> None:
    table, held = ConnectionTable(8, 2), dict[Caller, str]()
    for what, which, network in steps:
        if what == "admit":
            caller = Caller(network)
            held[caller] = table.admit(caller, network)
        elif held:
            caller = list(held)[which % len(held)]
            getattr(table, what)(caller)
            if what == "release":
                del held[caller]
        held = {each: place for each, place in held.items() if not each.is_closed}
        assert num_held(table) == len(held)
        assert sum(place == "any" for place in held.values()) <= 8
        assert sum(place == "probe" for place in held.values()) <= 2
    for caller in held:
        table.release(caller)
    assert (num_held(table), table._networks, table._crowded, len(table._idle)) == (0, {}, set(), 0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.254", True),
        ("192.0.2.1", "192.0.3.1", False),
        ("::ffff:192.0.2.1", "192.0.2.9", True),
        ("2001:db8:0:1::1", "2001:db8:0:ff::9", True),
        ("2001:db8:0:1::1", "2001:db8:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
    ],
)
def test_networks(one: str, other: str, same: bool) -> None:
    assert (network_of((one, 1)) == network_of((other, 2, 0, 0))) is same


def test_a_socket_of_this_machine_has_no_network() -> None:
    assert network_of("/run/socket") == network_of(None) == ""
