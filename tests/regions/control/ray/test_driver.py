"""The driver follows orders by Ray's API, here a stand-in; `test_real_ray.py` meets real Ray."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.regions.control.ray.fake_ray import FakeRay, RayError
from tests.regions.control.ray.support import SETTINGS, kept, launch

from skerry_regions.control.planning.launcher import Launch
from skerry_regions.control.reconcile.ray.driver import RayDriver, connect
from skerry_regions.control.reconcile.ray.exposure import Exposed
from skerry_regions.control.reconcile.ray.ray_messages import RayOrders


class Kept:
    """A keeper without a node."""

    def __init__(self, launch: bytes, term: int) -> None:
        self.launch, self.term = msgspec.json.decode(launch, type=Launch), term
        self.drained_by = 0

    def state(self, term: int) -> bytes:
        self.term = max(self.term, term)
        number = int(self.launch.id.rpartition("-")[2])
        return msgspec.json.encode(kept(number, term=self.term))

    def drain(self, term: int) -> None:
        self.drained_by = term


@pytest.fixture
def ray() -> FakeRay:
    return FakeRay(Kept)


def test_what_is_ordered_is_done_and_reported_with_the_next_order(ray: FakeRay) -> None:
    driver = RayDriver(ray)
    first = driver.follow(RayOrders(term=1, start=(launch(0), launch(1))))
    assert (first.keepers, first.silent, [*ray.actors]) == ((), (), ["fra-p-0", "fra-p-1"])
    again = driver.follow(RayOrders(term=1, start=(launch(0), launch(1))))
    assert [each.record.id for each in again.keepers] == ["fra-p-0", "fra-p-1"]
    assert ray.actors["fra-p-0"].made.launch == launch(0)
    driver.follow(RayOrders(term=1, drain=("fra-p-0",), stop=("fra-p-1", "fra-p-7")))
    assert (ray.actors["fra-p-0"].made.drained_by, ray.killed) == (1, ["fra-p-1"])
    assert [each.record.id for each in driver.follow(RayOrders(term=1)).keepers] == ["fra-p-0"]


def test_a_keeper_is_detached_and_restarted_by_nobody(ray: FakeRay) -> None:
    settings = msgspec.structs.replace(SETTINGS, gpus=1, memory=1 << 30)
    RayDriver(ray).follow(RayOrders(term=1, start=(launch(0, settings=settings),)))
    told = ray.actors["fra-p-0"].options
    assert (told["lifetime"], told["max_restarts"]) == ("detached", 0)
    assert (told["num_cpus"], told["num_gpus"], told["memory"]) == (2, 1, 1 << 30)


def test_a_name_that_is_being_stopped_is_not_started_beside_it(ray: FakeRay) -> None:
    driver = RayDriver(ray)
    driver.follow(RayOrders(term=1, start=(launch(0),)))
    before = ray.actors["fra-p-0"]
    orders = RayOrders(term=1, stop=("fra-p-0",), start=(launch(0),))
    driver.follow(orders)
    assert ray.actors == {}
    driver.follow(RayOrders(term=1, start=(launch(0),)))
    assert ray.actors["fra-p-0"] is not before


def test_one_that_does_not_answer_is_asked_once_and_said_to_be_silent(ray: FakeRay) -> None:
    driver = RayDriver(ray)
    driver.follow(RayOrders(term=1, start=(launch(0),)))
    actor = ray.actors["fra-p-0"]
    actor.is_silent = True
    for _ in range(3):
        report = driver.follow(RayOrders(term=1))
        assert (report.keepers, report.silent) == ((), ("fra-p-0",))
    assert actor.calls == ["state"]
    actor.is_silent = False
    assert [each.record.id for each in driver.follow(RayOrders(term=1)).keepers] == ["fra-p-0"]


def test_one_that_died_is_asked_again_by_its_name(ray: FakeRay) -> None:
    driver = RayDriver(ray)
    driver.follow(RayOrders(term=1, start=(launch(0),)))
    ray.actors["fra-p-0"].has_died = True
    assert driver.follow(RayOrders(term=1)).silent == ("fra-p-0",)
    ray.actors.clear()
    driver.follow(RayOrders(term=1, start=(launch(0),)))
    report = driver.follow(RayOrders(term=1))
    assert ([each.record.id for each in report.keepers], report.silent) == (["fra-p-0"], ())


def test_orders_of_a_term_that_is_over_are_not_followed(ray: FakeRay) -> None:
    old, new = RayDriver(ray), RayDriver(ray)
    old.follow(RayOrders(term=1, start=(launch(0),)))
    assert new.follow(RayOrders(term=2)).deposed_by == 0
    report = old.follow(
        RayOrders(term=1, start=(launch(1),), drain=("fra-p-0",), stop=("fra-p-0",))
    )
    assert report.deposed_by == 2
    assert ([*ray.actors], ray.actors["fra-p-0"].made.drained_by) == (["fra-p-0"], 0)


def test_what_ray_refuses_is_said(ray: FakeRay) -> None:
    def refuses(*arguments: Any) -> Any:
        raise ValueError("no such option")

    ray._make = refuses
    driver = RayDriver(ray)
    driver.follow(RayOrders(term=1, start=(launch(0),)))
    report = driver.follow(RayOrders(term=1, start=(launch(0),)))
    assert report.refused == {"fra-p-0": "no such option"}


def test_without_a_head_it_says_nothing_of_what_runs(ray: FakeRay) -> None:
    ray.is_away = True
    with pytest.raises(RayError):
        RayDriver(ray).follow(RayOrders(term=1))


@pytest.mark.parametrize(
    ("address", "mode", "why"),
    [
        ("9.9.9.9:6379", "token", "open to the internet"),
        ("0.0.0.0:6379", "token", "open to the internet"),
        ("127.0.0.1:6379", "", "RAY_AUTH_MODE is not token"),
        ("[::1]:6379", "disabled", "RAY_AUTH_MODE is not token"),
    ],
)
def test_ray_that_others_could_use_is_not_connected_to(
    address: str, mode: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", mode)
    with pytest.raises(Exposed, match=why):
        connect(address, "skerry-fra")
