"""What is made of the reports of a Ray cluster."""

from __future__ import annotations

import dataclasses

from tests.regions.control.ray.support import INCARNATION, kept, launch

from skerry_regions.control.planning.launcher import Ended, RunningProcess
from skerry_regions.control.reconcile.ray.cluster_picture import SILENT_SECONDS, ClusterPicture
from skerry_regions.control.reconcile.ray.ray_messages import NodeEnd, RayReport
from skerry_regions.registry import Member


def cluster(*reports: RayReport, now: float = 0.0) -> ClusterPicture:
    found = ClusterPicture("fra", 1)
    for report in reports:
        found.take(report, now)
    return found


def running(found: ClusterPicture, *members: Member, now: float = 0.0) -> dict[str, RunningProcess]:
    return {each.id: each for each in found.running({each.id: each for each in members}, now)}


def member(**values: object) -> Member:
    said = {"id": "fra-p-0", "kind": "node", "region": "fra", "pid": 77, "state": "ready"}
    return Member(**(said | values))  # type: ignore[arg-type]


def test_a_node_is_as_its_keeper_and_the_registry_say() -> None:
    found = cluster(RayReport(keepers=(kept(),)))
    process = running(found, member(streams=3, address="tcp:10.0.0.7:41"))["fra-p-0"]
    assert (process.state, process.streams, process.address, process.pid) == (
        "ready", 3, "tcp:10.0.0.7:41", 77,
    )  # fmt: skip
    other = running(found, member(pid=78, streams=3))["fra-p-0"]
    assert (other.state, other.streams) == ("ready", 0), "another start's word is not its own"


def test_one_that_drains_by_its_own_word_drains() -> None:
    found = cluster(RayReport(keepers=(kept(),)))
    assert running(found, member(state="draining"))["fra-p-0"].state == "draining"


def test_one_that_answers_no_health_check_has_failed() -> None:
    found = cluster(RayReport(keepers=(kept(healthy_at=80.0),)))
    process = running(found)["fra-p-0"]
    assert (process.state, process.seconds) == ("failed", 20.0)


def test_a_launch_is_ordered_until_its_own_start_is_reported() -> None:
    found = cluster(RayReport())
    found.launches["fra-p-0"] = launch(), 5.0
    assert running(found, now=8.0)["fra-p-0"].seconds == 3.0
    found.take(RayReport(keepers=(kept(incarnation=INCARNATION - 1),)), 9.0)
    assert found.orders().start == (launch(),), "who is there is the one before"
    found.take(RayReport(silent=("fra-p-0",)), 10.0)
    assert found.orders().start == (launch(),)
    assert running(found, now=10.0)["fra-p-0"].state == "starting", "it waits for room"
    found.take(RayReport(keepers=(kept(),)), 11.0)
    assert found.orders().start == ()
    assert running(found)["fra-p-0"].state == "ready"


def test_an_end_is_reported_once_and_its_keeper_is_stopped() -> None:
    end = NodeEnd(seconds=90.0, status=-9, log="/log", last_words="  out of memory")
    found = cluster(RayReport(keepers=(kept(),)), *[RayReport(keepers=(kept(end=end),))] * 2)
    assert found.ended == [
        Ended(
            id="fra-p-0", owner="fra-p", asked=False, ran_seconds=90.0, status=-9, log="/log",
            last_words="  out of memory",
        )
    ]  # fmt: skip
    assert (running(found), found.orders().stop) == ({}, ("fra-p-0",))
    assert not found.has("fra-p-0"), "it may be started again"
    found.take(RayReport(), 1.0)
    assert (len(found.ended), found.orders().stop) == (1, ())


def test_one_that_drained_ended_as_it_was_to() -> None:
    end = NodeEnd(seconds=90.0, status=0)
    drained = cluster(RayReport(keepers=(kept(draining_since=99.0, end=end),)))
    assert [each.asked for each in drained.ended] == [True]
    by_itself = cluster(RayReport(keepers=(kept(end=end),)))
    assert [each.asked for each in by_itself.ended] == [True], "its operator said so"
    too_early = cluster(RayReport(keepers=(kept(was_ready=False, end=end),)))
    assert [each.asked for each in too_early.ended] == [False]


def test_a_keeper_that_is_gone_has_lost_its_node() -> None:
    found = cluster(RayReport(keepers=(kept(),)), RayReport())
    assert [(each.asked, each.lost) for each in found.ended] == [
        (False, "its keeper on the Ray cluster of fra is gone")
    ]
    assert running(found) == {}


def test_one_that_was_replaced_between_two_reports_has_ended() -> None:
    found = cluster(RayReport(keepers=(kept(),)), RayReport(keepers=(kept(incarnation=9 << 20),)))
    assert [each.id for each in found.ended] == ["fra-p-0"]
    assert running(found)["fra-p-0"].incarnation == 9 << 20


def test_a_silent_keeper_loses_its_node_after_a_while() -> None:
    found = cluster(RayReport(keepers=(kept(),)))
    found.take(RayReport(silent=("fra-p-0",)), SILENT_SECONDS)
    assert (found.ended, [*running(found)]) == ([], ["fra-p-0"])
    found.take(RayReport(silent=("fra-p-0",)), SILENT_SECONDS + 0.1)
    assert [each.lost for each in found.ended] == ["its keeper is silent for 5 s"]
    assert (running(found), found.orders().stop) == ({}, ("fra-p-0",))


def test_while_the_head_is_away_nodes_count_as_they_did() -> None:
    found = cluster(RayReport(keepers=(kept(),)))
    before = running(found)
    found.take(RayReport(away="no head"), 1000.0)
    assert (running(found), found.ended, found.away) == (before, [], "no head")
    found.take(RayReport(keepers=(kept(),)), 1001.0)
    assert (found.ended, found.away) == ([], "")


def test_a_pending_keeper_of_others_before_us_is_replaced() -> None:
    found = cluster(RayReport(silent=("fra-p-3",)))
    process = running(found)["fra-p-3"]
    assert (process.owner, process.fingerprint, process.state) == ("fra-p", "", "starting")
    assert found.has("fra-p-3")


def test_a_launch_that_ray_refuses_is_a_failure() -> None:
    found = cluster(RayReport())
    found.launches["fra-p-0"] = launch(), 0.0
    found.take(RayReport(refused={"fra-p-0": "no such resource"}), 1.0)
    [ended] = found.ended
    assert ended.sentence == "fra-p-0 is lost: it could not be started: no such resource"
    assert not found.has("fra-p-0")


def test_orders_are_repeated_until_they_were_followed() -> None:
    found = cluster(RayReport(keepers=(kept(0), kept(1))))
    found.drains.add("fra-p-0")
    found.stops.add("fra-p-1")
    assert running(found)["fra-p-0"].state == "draining", "it is not ordered at each look again"
    found.take(RayReport(keepers=(kept(0), kept(1))), 1.0)
    orders = found.orders()
    assert (orders.drain, orders.stop) == (("fra-p-0",), ("fra-p-1",))
    found.take(RayReport(keepers=(kept(0, draining_since=99.0),)), 2.0)
    orders = found.orders()
    assert (orders.drain, orders.stop) == ((), ())


def test_a_launch_crosses_the_line_whole() -> None:
    import msgspec

    from skerry_regions.control.reconcile.ray.ray_messages import RayOrders

    found = cluster(RayReport())
    ordered = dataclasses.replace(launch(), port=0)
    found.launches["fra-p-0"] = ordered, 0.0
    line = msgspec.json.encode(found.orders())
    assert msgspec.json.decode(line, type=RayOrders).start == (ordered,)
