"""The twin: queueing theory, steps by hand, the product's own Python, failures and scaling."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from tests.regions.twin.worlds import GPU, load_kernels, pool, run, scenario, three_regions

from skerry_regions.routing.bookings import Bookings
from skerry_regions.routing.fast.laws import BUSY_UNTIL, CONTEXT, STREAMS
from skerry_regions.speeds import attended_pairs
from skerry_regions.twin.figures import figures, interval
from skerry_regions.twin.kernel import state
from skerry_regions.twin.kernel.entries import touch_slot
from skerry_regions.twin.scenario import Failure, Law, Routing, SimulatedRegion, SimulatedTraffic
from skerry_regions.twin.workload import Workload
from skerry_regions.view import NodeLoad, NodeState

ONE_BY_ONE = Law(base=0.0, per_token=0.001, chunk_tokens=100)


# Compiling takes a minute on two quiet cores; `test_plain` runs the same code without.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    load_kernels()


def workload(*requests: tuple[float, int, int]) -> Workload:
    """Return requests (arrival, prompt, output) without shared blocks, all in the first region."""
    count = len(requests)
    none = np.zeros(count, np.int64)
    return Workload(
        arrivals=np.array([each[0] for each in requests], np.float64),
        prompts=np.array([each[1] for each in requests], np.int64),
        outputs=np.array([each[2] for each in requests], np.int64),
        regions=none,
        firsts=none,
        blocks=none,
        names=np.zeros(0, np.uint64),
    )


def test_waiting_times_are_those_of_queueing_theory() -> None:
    """One server, Poisson arrivals, constant service: M/D/1, mean wait = rho·S / (2·(1 - rho))."""
    rng, now, requests = Random(5), 0.0, []
    for _ in range(20_000):
        now += rng.expovariate(7.0)
        requests.append((now, 100, 1))
    one = scenario(pools=[pool(replicas=1, speed=ONE_BY_ONE)])
    done = run(one, workload(*requests))
    wait = done.built.world.requests.first_token.mean() - 0.1
    assert wait == pytest.approx(0.7 * 0.1 / (2 * 0.3), rel=0.05)


def test_a_burst_of_decode_steps_cut_short_equals_single_steps() -> None:
    """The second stream's prompt ends a burst of the first; then both share each step."""
    law = Law(base=1.0, per_token=0.01, per_stream=0.25, per_context=0.001, gap_seconds=9.0)
    one = scenario(pools=[pool(replicas=1, speed=law)], regions=[SimulatedRegion(name="a", rtt=0)])
    requests = run(one, workload((0.0, 10, 4), (3.0, 20, 2))).built.world.requests
    prompt = 1.0 + 0.1
    first_alone = [1.25 + 0.001 * context for context in (11, 12)]  # the second runs at t = 3
    beside = 1.25 + 0.2 + 0.001 * 13  # with the second one's prompt; the first one's last token
    alone = 1.25 + 0.001 * 21
    assert requests.first_token[0] == pytest.approx(prompt)
    assert requests.end[0] == pytest.approx(prompt + sum(first_alone) + beside)
    assert requests.first_token[1] + 3.0 == pytest.approx(prompt + sum(first_alone) + beside)
    assert requests.end[1] + 3.0 == pytest.approx(prompt + sum(first_alone) + beside + alone)


def test_what_an_edge_knows_of_a_node_is_what_the_product_would_know() -> None:
    """A report amid the last bookings of a run, against `routing.bookings`."""
    rtt = 0.02
    done = run(
        scenario(
            regions=[SimulatedRegion(name="a", rtt=rtt)],
            traffic=[SimulatedTraffic(regions={"a": 1.0}, rate=40.0, seconds=4.0, prefixes=5)],
        )
    )
    world = done.built.world
    world.requests.phase[:] = state.DECODING  # or an edge would not count its own
    pairs = attended_pairs(5000, 100)
    for slot in range(done.built.num_nodes):
        end, size = int(world.nodes.booked[slot, 1]), world.nodes.bookings.shape[1]
        last = [world.nodes.bookings[slot, number % size] for number in range(end - 20, end)]
        known = Bookings(600.0, 1000)
        for each in last:
            cached = int(each[state.B_PROMPT] - each[state.B_NEW])
            assert each[state.B_PAIRS] == attended_pairs(int(each[state.B_NEW]), cached)
            kind = int(each[state.B_KIND])
            prefill, decode = "n" if kind & 1 else "x", "n" if kind & 2 else "x"
            known.hear(prefill, decode, each[state.B_AT], int(each[state.B_PROMPT]), cached)
        made_at = float(last[10][state.B_AT])
        world.nodes.booked[slot, 0] = end - 20
        world.nodes.reports[slot, 0] = (made_at, 5000.0, pairs, 3, 900.0, 1)
        world.edges.seen_at[0] = 100.0
        touch_slot(world, 0, slot)
        node = NodeState(
            id="n", region="a", residency="", role="hybrid", model="m", numeric_build="b",
            kv_format="k", kv_bytes_per_token=1.0, speed=GPU.as_speed(),
            load=NodeLoad(
                prefill_tokens=5000.0, prefill_pairs=pairs, streams=3, context_tokens=900
            ),
            observed_at=made_at + rtt / 2,
        )  # fmt: skip
        expected, row = known.backlog(node, rtt), world.rows.numbers[0, slot]
        assert expected.streams > 3
        assert row[BUSY_UNTIL] == pytest.approx(expected.busy_until, abs=1e-9)
        assert (row[STREAMS], row[CONTEXT]) == (expected.streams, expected.context)


def test_every_request_is_answered_once_and_a_run_repeats_bit_for_bit() -> None:
    first, second = run(three_regions()), run(three_regions())
    requests = first.built.world.requests
    assert (requests.phase == state.DONE).all()
    assert (requests.first_token > 0).all()
    assert (requests.end >= requests.first_token).all()
    assert np.array_equal(requests.end, second.built.world.requests.end)
    nodes = first.built.world.nodes
    assert not nodes.num_streams.any()
    assert not nodes.num_waiting.any()
    assert nodes.context == pytest.approx(np.zeros(len(nodes.context)))
    assert not first.built.world.rows.active.any()
    assert 0 < figures(first).hit_share < 1


def test_a_shared_prefix_is_computed_once_for_each_node_that_has_it() -> None:
    traffic = SimulatedTraffic(
        regions={"a": 1.0}, rate=1.0, limit=20, prefixes=1, prefix_tokens=6400, prompt_tokens=10
    )
    requests = run(scenario(traffic=[traffic], pools=[pool(replicas=1)])).built.world.requests
    assert requests.hit[0] == 0
    assert (requests.hit[1:] == 6400).all()


def test_a_node_that_dies_loses_no_request_and_takes_none_until_it_is_back() -> None:
    failure = Failure(at=5.0, seconds=8.0, node="a-p-1")
    done = run(scenario(failures=[failure]))
    requests = done.built.world.requests
    assert (requests.phase == state.DONE).all()
    assert requests.attempt.max() == 1  # those that ran there went on elsewhere
    began = np.asarray(requests.began)
    during = (began > 5.05) & (began < 13.0)
    assert not (requests.prefill[during] == 1).any()
    assert (requests.prefill[began >= 13.0] == 1).any()


def test_a_frozen_node_is_noticed_after_two_seconds() -> None:
    failure = Failure(at=5.0, seconds=8.0, node="a-p-1", freezes=True)
    requests = run(scenario(failures=[failure])).built.world.requests
    assert (requests.phase == state.DONE).all()
    moved = requests.attempt > 0
    assert moved.any()
    assert requests.since[moved] == pytest.approx(7.05)


def test_clients_of_a_region_that_is_down_ask_the_nearest_other_one() -> None:
    given = three_regions(failures=[Failure(at=5.0, seconds=40.0, region="a")], dns_seconds=3.0)
    done = run(given)
    requests, nodes = done.built.world.requests, done.built.world.nodes
    came = done.built.workload.regions
    late = (came == 0) & (done.built.workload.arrivals > 8.0)
    assert (requests.phase[late] == state.DONE).all()
    assert (requests.region[late] == 1).all()
    assert not (nodes.region[requests.decode[late]] == 0).any()
    failed = requests.phase == state.FAILED
    assert set(came[failed]) <= {0}  # streams of its own edges broke off


def test_nothing_crosses_a_partition() -> None:
    parted = Failure(at=0.0, seconds=1000.0, partition=("a", "b"))
    hot = SimulatedTraffic(regions={"a": 1.0}, rate=30.0, seconds=20.0)
    whole, apart = (
        run(three_regions(traffic=[hot], failures=failures)).built.world
        for failures in ([], [parted])
    )
    assert (whole.nodes.region[whole.requests.decode] == 1).any()
    assert not (apart.nodes.region[apart.requests.decode] == 1).any()
    assert (apart.requests.phase == state.DONE).all()


def test_a_partition_holds_while_regions_scale() -> None:
    scaled = pool(region="a", replicas=1, max_replicas=4, min_replicas=1, start_seconds=5.0)
    hot = SimulatedTraffic(regions={"a": 1.0}, rate=6.0, seconds=100.0, prompt_tokens=2500)
    world = run(
        three_regions(
            pools=[scaled, pool(region="b", replicas=4), pool(region="c", replicas=4)],
            traffic=[hot], failures=[Failure(at=0.0, seconds=1000.0, partition=("a", "b"))],
        )
    ).built.world  # fmt: skip
    assert world.nodes.up[1:4].any()
    assert not (world.nodes.region[world.requests.decode] == 1).any()


def test_the_autoscaler_adds_nodes_after_their_start_and_takes_them_away() -> None:
    scaled = pool(replicas=1, max_replicas=4, min_replicas=1, start_seconds=30.0, idle_seconds=60.0)
    busy = SimulatedTraffic(regions={"a": 1.0}, rate=6.0, seconds=200.0, prompt_tokens=2500)
    calm = SimulatedTraffic(regions={"a": 1.0}, rate=0.2, seconds=900.0, prompt_tokens=100)
    done = run(scenario(pools=[scaled], traffic=[busy, calm]))
    began, slots = done.built.world.requests.began, done.built.world.requests.prefill
    assert (slots[began < 30.0] == 0).all()
    assert len(set(slots[(began > 100.0) & (began < 200.0)].tolist())) > 1
    assert done.scaling.seconds[0] > 2 * done.scaling.seconds[3]
    assert (done.built.world.requests.phase == state.DONE).all()


def test_what_the_autoscaler_does_to_a_region_that_is_away_holds_when_it_is_back() -> None:
    given = three_regions(
        pools=[
            pool(region="a", replicas=3, max_replicas=5, min_replicas=1, start_seconds=10.0,
                 idle_seconds=20.0),
            pool(region="b", replicas=4), pool(region="c", replicas=4),
        ],
        traffic=[SimulatedTraffic(regions={"a": 1.0, "b": 1.0}, rate=6.0, seconds=200.0)],
        failures=[Failure(at=20.0, seconds=60.0, region="a")], dns_seconds=3.0,
    )  # fmt: skip
    done = run(given)
    world, paid = done.built.world, done.scaling.paid(done.end)
    began, slots = world.requests.began, world.requests.prefill
    away = (began > 23.0) & (began < 80.0)
    assert not (slots[away] < 5).any()  # whatever was started there meanwhile
    assert (slots[began > 90.0] < 5).any()
    used = {int(slot) for slot in slots[began > 90.0] if slot < 5}
    assert all(paid[slot] > 100.0 for slot in used)  # none that was stopped while it was away


def test_prefill_and_decode_pools_hand_over_what_is_missing() -> None:
    given = scenario(
        pools=[
            pool(name="p", role="prefill", replicas=1),
            pool(name="d", role="decode", replicas=1),
        ],
        traffic=[SimulatedTraffic(regions={"a": 1.0}, rate=2.0, limit=40, prompt_tokens=20_000)],
    )
    done = run(given)
    assert figures(done).split_share > 0
    assert (done.built.world.requests.phase == state.DONE).all()


def test_learned_speeds_come_near_the_true_ones() -> None:
    done = run(scenario(
        router=Routing(learn_from=3.0), pools=[pool(factors=[1.0, 1.0, 1.0, 2.0])],
        traffic=[SimulatedTraffic(regions={"a": 1.0}, rate=12.0, seconds=60.0)],
    ))  # fmt: skip
    nodes = done.built.world.nodes
    ratio = nodes.believed[:4, 1] / nodes.truth[:4, 1]  # seconds per token
    assert ratio == pytest.approx(np.ones(4), rel=0.35)


def test_an_interval_is_students() -> None:
    """Five values: mean 3, standard deviation sqrt(2.5), and t of a table 2.776."""
    mean, half = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3.0
    assert half == pytest.approx(2.776 * (2.5 / 5) ** 0.5, rel=0.01)
    assert interval([7.0]) == (7.0, None)
