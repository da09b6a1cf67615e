"""Tokens of several homes on real NATS servers: made, changed and revoked at one, so at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace
from tests.edge.gate.shared_tokens import SharedTokens, shared_tokens, soon
from tests.edge.support import ACCOUNT
from tests.regions.drivers.faults import FAULTS_MOSTLY_SLOW, Fault, FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry_edge.gate.token_file import TokenStoreError, digest_of, new_secret, token_text
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.money.caps import Caps

SOON = 2.0  # seconds in which every edge knows


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"), size=1)
    yield cluster
    cluster.stop()


@pytest.fixture
def homes(servers: NatsCluster, tmp_path: Path) -> Iterator[SharedTokens]:
    with shared_tokens(servers, tmp_path) as homes:
        yield homes


def test_what_is_changed_at_one_home_is_so_at_the_other(homes: SharedTokens) -> None:
    one, other = homes.join("one"), homes.join("other")
    token, record = one.create(account_id=ACCOUNT, role="developer", now=1)
    assert one.authenticate(token) is not None, "at once where it was made"
    soon(lambda: other.authenticate(token) is not None, SOON)
    child, below = other.create(account_id=ACCOUNT, parent=record.id, now=2)
    soon(lambda: one.authenticate(child) is not None, SOON)
    secret = new_secret()
    assert other.rotate(record.id, digest_of(secret))
    rotated = token_text(record.id, secret)
    soon(lambda: one.authenticate(rotated) is not None, SOON)
    assert one.authenticate(token) is None
    assert one.set_caps(below.id, Caps(per_day=2.0))
    soon(lambda: other.records()[1].per_day == 2.0, SOON)
    assert homes.path("one").read_bytes() == homes.path("other").read_bytes()
    assert secret.encode() not in homes.path("other").read_bytes(), "digests only"
    assert one.revoke(record.id) == 2
    soon(lambda: not (other.is_live(record.id) or other.is_live(below.id)), SOON)
    assert other.authenticate(child) is None
    assert other.records() == one.records() == []


def test_a_token_that_two_homes_change_at_once_is_as_one_of_them_says(homes: SharedTokens) -> None:
    """Both know it as it was; the second is refused, and may repeat it."""
    one, other = homes.join("one"), homes.join("other")
    _, record = one.create(account_id=ACCOUNT, now=1)
    soon(lambda: other.has(record.id))

    def change() -> None:
        with other._records.changing() as records:
            assert one.set_caps(record.id, Caps(per_day=1.0))
            records[record.id] = replace(record, name="another")

    with pytest.raises(TokenStoreError, match="written by another: repeat"):
        change()
    assert other.set_caps(record.id, Caps(per_day=2.0))
    soon(lambda: [each.per_day for each in one.records()] == [2.0])


T = TypeVar("T")
Case = Callable[[TokenStore, TokenStore], None]


def made(one: TokenStore, other: TokenStore) -> None:
    token, record = again(lambda: one.create(account_id=ACCOUNT, name="kept", now=1))
    soon(lambda: other.authenticate(token) is not None)
    soon(lambda: one.is_live(record.id))


def revoked(one: TokenStore, other: TokenStore) -> None:
    _, parent = other.create(account_id=ACCOUNT, now=1)
    child, record = other.create(account_id=ACCOUNT, parent=parent.id, now=1)
    soon(lambda: one.has(record.id))
    again(lambda: one.revoke(parent.id))
    soon(lambda: other.authenticate(child) is None and other.records() == [])
    soon(lambda: one.records() == [])


def rotated(one: TokenStore, other: TokenStore) -> None:
    _, record = other.create(account_id=ACCOUNT, now=1)
    soon(lambda: one.has(record.id))
    secret = new_secret()
    assert again(lambda: one.rotate(record.id, digest_of(secret)))
    text = token_text(record.id, secret)
    soon(lambda: other.authenticate(text) is not None and one.authenticate(text) is not None)


def again(change: Callable[[], T]) -> T:
    """As an operator who repeats what was refused."""
    while True:
        try:
            return change()
        except TokenStoreError:
            time.sleep(0.05)


@pytest.mark.parametrize("fault", FAULTS_MOSTLY_SLOW)
@pytest.mark.parametrize("case", [made, revoked, rotated])
def test_a_change_holds_whatever_request_fails(
    case: Case, fault: Fault, servers: NatsCluster, tmp_path: Path
) -> None:
    """With a fault at the first request of the home that changes, at its second, and so on."""
    at, is_hit = 0, True
    while is_hit:
        plan = FaultPlan(fault, at, servers)
        with shared_tokens(servers, tmp_path) as homes:
            other, one = homes.join("other"), homes.join("one", plan)
            assert homes.settings[1].wait(60)
            plan.is_armed = True
            case(one, other)
            is_hit = plan.was_hit and at < MOST
        at += 1
    assert at > 2


MOST = 5  # a home that follows has requests for ever: these are those of the change


def test_what_a_home_had_before_goes_to_the_others(homes: SharedTokens) -> None:
    files = [TokenStore(homes.path(name)) for name in ("one", "other")]
    tokens = [file.create(account_id=ACCOUNT, now=number)[0] for number, file in enumerate(files)]
    one = homes.join("one")
    soon(lambda: json.loads(homes.path("one").read_bytes())["stream"] != "")
    other = homes.join("other")
    for store in (one, other):
        soon(lambda store=store: all(store.authenticate(each) for each in tokens))
    with pytest.raises(TokenStoreError, match="picture of what NATS servers have"):
        files[0].create(account_id=ACCOUNT, now=3)
    [first, _] = one.records()
    one.revoke(first.id)
    soon(lambda: not other.has(first.id))


def test_a_home_serves_from_its_picture_and_learns_what_it_missed(tmp_path: Path) -> None:
    """Servers away: what was there last counts, and changes are refused. Servers that come back
    with nothing get what homes have."""
    servers = NatsCluster(tmp_path / "nats", size=1)
    with shared_tokens(servers, tmp_path) as homes:
        one = homes.join("one")
        token, record = one.create(account_id=ACCOUNT, now=1)
        lost, _ = one.create(account_id=ACCOUNT, now=2)
        servers.kill("n1")
        soon(lambda: refuses(one))
        alone = TokenStore(homes.path("one"))
        assert alone.authenticate(token) is not None
        assert one.authenticate(lost) is not None
        servers.start("n1")
        soon(lambda: not refuses(one))
        other = homes.join("other")
        soon(lambda: other.authenticate(token) is not None)
        servers.kill("n1")
        servers.forget("n1")
        servers.start("n1")
        third = homes.join("third")
        soon(lambda: third.authenticate(token) is not None)
        soon(lambda: third.authenticate(lost) is not None)
        third.revoke(record.id)
        soon(lambda: not one.has(record.id) and not other.has(record.id))
    servers.stop()


def refuses(store: TokenStore) -> bool:
    try:
        store.set_caps("0" * 16, Caps())
    except TokenStoreError:
        return True
    return False


def test_many_homes_make_tokens_at_once(homes: SharedTokens) -> None:
    stores = [homes.join(f"h{number}") for number in range(4)]

    def make(store: TokenStore) -> None:
        for number in range(10):
            store.create(account_id=ACCOUNT, now=number)

    threads = [threading.Thread(target=make, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for store in stores:
        soon(lambda store=store: len(store.records()) == 40)
    assert len({tuple(each.id for each in store.records()) for store in stores}) == 1
