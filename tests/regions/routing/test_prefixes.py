"""The prefix directory against a plain model, over a network that loses, doubles and reorders."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples
from tests.regions.routing.prefix_nodes import (
    UNIVERSE,
    Message,
    believed,
    believed_of_all,
    delta,
    make,
    wanted,
)

from skerry_regions.prefix_news import PrefixPublisher, PrefixSnapshot
from skerry_regions.routing.block_index import CachedPrefix, DirectoryLimits
from skerry_regions.routing.prefixes import PrefixDirectory

KINDS = ("plain", "compiled")


def longest_run(held: dict[bytes, str], digests: list[bytes]) -> CachedPrefix:
    """One node's part of `match_all` in its plainest form."""
    run = 0
    while run < len(digests) and digests[run] in held:
        run += 1
    in_file = [held[digest] == "file" for digest in digests[:run]]
    return CachedPrefix(run, sum(in_file), in_file.index(True) if any(in_file) else run)


@dataclass
class Node:
    """A publisher beside the truth: what it holds, and all that it ever held."""

    name: str
    incarnation: int = 1
    held: dict[bytes, str] = field(default_factory=dict)
    past: list[dict[bytes, str]] = field(default_factory=lambda: [{}])

    def __post_init__(self) -> None:
        self.publisher = PrefixPublisher(self.name, self.incarnation)

    def change(self, rng: random.Random) -> None:
        digests = rng.sample(UNIVERSE, rng.randint(1, 4))
        what = rng.choice(["memory", "memory", "file", "evict"])
        if what == "evict":
            self.publisher.evicted(digests)
            for digest in digests:
                self.held.pop(digest, None)
        else:
            self.publisher.sealed(digests, "file" if what == "file" else "memory")
            self.held.update(dict.fromkeys(digests, what))
        self.past.append(dict(self.held))

    def restart(self) -> None:
        self.incarnation += 1
        self.held = {}
        self.__post_init__()


def deltas(node: Node) -> list[Message]:
    found: list[Message] = []
    while (delta := node.publisher.delta()) is not None:
        found.append(delta)
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40, deep=750), deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 120), loss=st.floats(0, 0.6))
def test_believes_only_what_was_once_true_and_ends_exact(
    kind: str, seed: int, steps: int, loss: float
) -> None:
    rng = random.Random(seed)
    directory = make(kind, DirectoryLimits(max_pending=rng.choice([1, 3, 50])))
    nodes = {name: Node(name) for name in ("a", "b", "c")}
    network: list[Message] = []

    def send(messages: list[Message]) -> None:
        for message in messages:
            if rng.random() >= loss:
                network.extend([message] * rng.choice([1, 1, 1, 2]))

    for _ in range(steps):
        node = rng.choice(list(nodes.values()))
        action = rng.random()
        if action < 0.5:
            node.change(rng)
        elif action < 0.8:
            send(deltas(node))
        elif action < 0.87:
            send([node.publisher.snapshot()])
        elif action < 0.9:
            node.restart()
        while network and rng.random() < 0.6:
            directory.apply(network.pop(rng.randrange(len(network))))
        held = believed_of_all(directory)
        for node in nodes.values():
            assert held[node.name] in node.past
        assert_matches(directory, held, nodes, rng)

    # The network heals: last deltas arrive, and snapshots, as at the start of a connection.
    rng.shuffle(network)
    for message in network:
        directory.apply(message)
    for node in nodes.values():
        for message in deltas(node):
            directory.apply(message)
        directory.apply(node.publisher.snapshot())
    assert wanted(directory) == []
    for node in nodes.values():
        assert believed(directory, node.name) == node.held
        assert directory.num_digests(node.name) == len(node.held)


def assert_matches(
    directory: PrefixDirectory,
    held: dict[str, dict[bytes, str]],
    nodes: Iterable[str],
    rng: random.Random,
) -> None:
    """`match_all` and the plain model agree."""
    prompt = rng.sample(UNIVERSE, rng.randint(0, len(UNIVERSE)))
    everyone = directory.match_all(prompt)
    for name in nodes:
        expected = longest_run(held[name], prompt)
        assert everyone.get(name, CachedPrefix()) == expected
        assert (name in everyone) == (expected.blocks > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gap_degrades_until_it_is_filled(kind: str) -> None:
    directory = make(kind)
    directory.apply(delta(1, 0))
    assert wanted(directory) == []
    directory.apply(delta(3, evicted=(1,)))  # 2, which sealed block 1, is late
    assert directory.match_all(UNIVERSE) == {"a": (1, 0, 1)}  # the last applied state is still used
    assert wanted(directory) == ["a"]
    directory.apply(delta(2, 1))
    assert directory.match_all(UNIVERSE) == {"a": (1, 0, 1)}
    assert wanted(directory) == []


@pytest.mark.parametrize("kind", KINDS)
def test_joining_late_waits_for_a_snapshot(kind: str) -> None:
    directory = make(kind)
    directory.apply(delta(57, 3))
    assert believed(directory, "a") == {}
    assert wanted(directory) == ["a"]
    directory.apply(PrefixSnapshot(node="a", incarnation=1, seq=56, memory=(UNIVERSE[0],)))
    assert believed(directory, "a") == dict.fromkeys([UNIVERSE[0], UNIVERSE[3]], "memory")


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_life_forgets_the_old_one_and_ignores_its_late_messages(kind: str) -> None:
    directory = make(kind)
    directory.apply(delta(1, 0, 1, 2))
    directory.apply(delta(1, 5, incarnation=2))
    assert believed(directory, "a") == {UNIVERSE[5]: "memory"}
    directory.apply(delta(2, 3))
    directory.apply(PrefixSnapshot(node="a", incarnation=1, seq=9, memory=tuple(UNIVERSE)))
    assert believed(directory, "a") == {UNIVERSE[5]: "memory"}
    assert wanted(directory) == []


@pytest.mark.parametrize("kind", KINDS)
def test_expectations_count_until_they_expire(kind: str) -> None:
    directory = make(kind, DirectoryLimits(expect_seconds=10))
    directory.expect("a", UNIVERSE[:3], now=0.0)
    directory.expect("a", UNIVERSE[:2], now=4.0)
    assert directory.match_all(UNIVERSE) == {"a": (3, 0, 3)}
    assert directory.match_all(UNIVERSE, expected=False) == {}  # hearsay is not knowledge
    directory.expire(now=10.0)
    assert directory.match_all(UNIVERSE) == {"a": (2, 0, 2)}
    directory.apply(delta(1, 0))
    directory.expire(now=14.0)
    assert directory.match_all(UNIVERSE) == {"a": (1, 0, 1)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_node_leaves_nothing_behind_and_its_place_is_used_again(kind: str) -> None:
    directory = make(kind, DirectoryLimits(max_nodes=1))
    directory.apply(delta(1, 0))
    directory.expect("a", UNIVERSE[:2], now=0.0)
    directory.expect("b", UNIVERSE, now=0.0)  # one too many
    assert directory.match_all(UNIVERSE) == {"a": (2, 0, 2)}
    directory.remove_node("a")
    assert directory.match_all(UNIVERSE) == {}
    directory.expect("b", UNIVERSE[:1], now=0.0)
    assert directory.match_all(UNIVERSE) == {"b": (1, 0, 1)}


@pytest.mark.parametrize(
    "limits",
    [DirectoryLimits(max_node_digests=3), DirectoryLimits(max_digests=3)],
)
def test_beyond_its_limits_the_oldest_is_forgotten(limits: DirectoryLimits) -> None:
    directory = PrefixDirectory(limits)
    directory.apply(delta(1, 0, 1, 2))
    directory.apply(delta(2, 3, 4))
    assert list(believed(directory, "a")) == UNIVERSE[2:5]
    assert wanted(directory) == []  # asking again would not help


@pytest.mark.parametrize("kind", KINDS)
def test_expectations_are_bounded(kind: str) -> None:
    directory = make(kind, DirectoryLimits(max_expected=4))
    directory.expect("a", UNIVERSE[:3], now=0.0)
    directory.expect("b", UNIVERSE[:3], now=0.0)
    assert directory.match_all(UNIVERSE) == {"b": (3, 0, 3)}


def test_messages_survive_the_wire_and_bounds_are_checked() -> None:
    sent = delta(1, 0, 1, evicted=(2,))
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Message)
    assert decoded == sent
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"type": "prefix_delta", "node": "a", "incarnation": 1, "seq": 0}, Message)
