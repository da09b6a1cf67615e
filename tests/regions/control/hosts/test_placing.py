"""Where nodes are placed: on hosts with room, spread over machines, never twice on one GPU."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_regions.control.planning.launcher import LaunchFailed, NodeSettings
from skerry_regions.control.planning.placing import HostRoom, place
from skerry_regions.process.launch_folder import Slot

GIB = 1 << 30


def node(threads: int = 1, memory: int = 0, gpus: int = 0) -> NodeSettings:
    return NodeSettings(
        region="fra", role="decode", model="m", runner="toy", threads=threads, memory=memory,
        gpus=gpus, launcher="machines",
    )  # fmt: skip


def room(id: str, cpus: int = 4, memory: int = 8 * GIB, num_same: int = 0) -> HostRoom:
    return HostRoom(id=id, cpus=cpus, memory=memory, gpus=(0, 1), num_same=num_same)


@pytest.mark.parametrize(
    ("hosts", "chosen"),
    [
        ([room("a", num_same=1), room("b", cpus=2)], "b"),
        ([room("a", cpus=2), room("b", cpus=3)], "b"),
        ([room("a", cpus=1), room("b", num_same=5)], "b"),
        ([room("a", memory=GIB), room("b", num_same=5)], "b"),
        ([room("b"), room("a")], "a"),
    ],
    ids=["fewest of the pool", "most left", "no cores", "no memory", "by name"],
)
def test_the_best_host_is_chosen(hosts: list[HostRoom], chosen: str) -> None:
    id, slot = place(node(threads=2, memory=2 * GIB), hosts)
    assert (id, slot) == (chosen, Slot(cpus=2, memory=2 * GIB))


def test_gpus_are_given_by_number() -> None:
    offers = Slot(cpus=8, memory=8 * GIB, gpus=(0, 2, 5))
    host = HostRoom.of("a", offers, [Slot(cpus=1, gpus=(2,))], 1)
    assert place(node(gpus=2), [host]) == ("a", Slot(cpus=1, gpus=(0, 5)))
    with pytest.raises(LaunchFailed, match=r"for 1 CPUs, 0\.0 GiB, 3 GPUs; a has 7 CPUs, 8\.0"):
        place(node(gpus=3), [host])


def test_without_a_host_it_is_said_what_to_do() -> None:
    with pytest.raises(LaunchFailed, match="no host of fra is there: run `skerry host --join`"):
        place(node(), [])


slots = st.builds(node, st.integers(1, 4), st.sampled_from([0, GIB, 3 * GIB]), st.integers(0, 2))


@given(st.lists(slots, max_size=20), st.lists(st.integers(0, 8), min_size=1, max_size=4))
def test_no_host_is_given_more_than_it_offers(wanted: list[NodeSettings], cpus: list[int]) -> None:
    offers = {
        str(i): Slot(cpus=each, memory=each * GIB, gpus=tuple(range(each // 2)))
        for i, each in enumerate(cpus)
    }
    taken: dict[str, list[Slot]] = {id: [] for id in offers}
    for settings in wanted:
        rooms = [HostRoom.of(id, offers[id], taken[id], len(taken[id])) for id in offers]
        try:
            id, slot = place(settings, rooms)
        except LaunchFailed:
            assert not any(
                (settings.threads or 1) <= offer.cpus - sum(s.cpus for s in taken[id])
                and settings.memory <= offer.memory - sum(s.memory for s in taken[id])
                and settings.gpus <= len(offer.gpus) - sum(len(s.gpus) for s in taken[id])
                for id, offer in offers.items()
            )
        else:
            taken[id].append(slot)
    for id, given_ in taken.items():
        assert sum(slot.cpus for slot in given_) <= offers[id].cpus
        assert sum(slot.memory for slot in given_) <= offers[id].memory
        gpus = Counter(gpu for slot in given_ for gpu in slot.gpus)
        assert gpus.keys() <= {*offers[id].gpus}
        assert all(count == 1 for count in gpus.values())
