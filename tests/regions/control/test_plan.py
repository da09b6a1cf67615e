"""`plan`: from what is wanted and what runs to what is to be done."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.properties import examples

from skerry_regions.control.planning.launcher import NodeSettings, RunningProcess, fingerprint
from skerry_regions.control.planning.plan import (
    DRAIN_SECONDS,
    ILL_SECONDS,
    Action,
    Drain,
    DrainTimeouts,
    Group,
    Kill,
    StartProcess,
    plan,
)

OLD = NodeSettings(region="fra", role="decode", model="m", runner="toy", kv_blocks=1)
NEW = NodeSettings(region="fra", role="decode", model="m", runner="toy", kv_blocks=2)


def group(replicas: int, **more: Any) -> dict[str, Group]:
    return {"p": Group(id="p", replicas=replicas, settings=NEW, **more)}


def process(number: int, *, old: bool = False, **more: Any) -> RunningProcess:
    values: dict[str, Any] = {
        "id": f"p-{number}", "owner": "p", "kind": "node", "region": "fra", "pid": 1 + number,
        "fingerprint": fingerprint(OLD if old else NEW), "state": "ready",
    }  # fmt: skip
    return RunningProcess(**(values | more))


def told(actions: list[Action]) -> list[str]:
    """Short: +id starts, -id drains, !id kills."""
    words = []
    for action in actions:
        match action:
            case StartProcess(launch):
                words.append(f"+{launch.id}")
            case Drain(id):
                words.append(f"-{id}")
            case Kill(id):
                words.append(f"!{id}")
    return words


def test_what_is_missing_is_started_by_the_lowest_free_number() -> None:
    assert told(plan(group(3), [])) == ["+p-0", "+p-1", "+p-2"]
    assert told(plan(group(3), [process(1)])) == ["+p-0", "+p-2"]
    assert told(plan(group(2), [process(0), process(1)])) == []


def test_a_number_is_free_once_its_process_has_ended() -> None:
    assert told(plan(group(1), [process(0, state="draining")])) == ["+p-1"]


def test_a_process_that_failed_lately_is_waited_for() -> None:
    assert told(plan(group(2), [], {"p-0"})) == ["+p-1"]
    assert told(plan(group(1), [], {"p-0"})) == []


def test_nothing_is_started_while_the_group_is_blocked() -> None:
    blocked = group(2, blocked="downloading")
    assert told(plan(blocked, [])) == []
    assert told(plan(blocked, [process(0, old=True), process(1, old=True)])) == []


def test_who_does_least_is_drained_first() -> None:
    running = [process(0, streams=2), process(1, streams=0), process(2, state="starting")]
    assert told(plan(group(2), running)) == ["-p-2"]
    assert told(plan(group(1), running)) == ["-p-1", "-p-2"]
    assert told(plan(group(0), running)) == ["-p-0", "-p-1", "-p-2"]


def test_a_group_that_is_gone_is_drained() -> None:
    assert told(plan({}, [process(0), process(1, state="draining")])) == ["-p-0"]


def test_a_changed_group_rolls_one_by_one() -> None:
    a, b = process(0, old=True), process(1, old=True)
    assert told(plan(group(2), [a, b])) == ["+p-2"]
    assert told(plan(group(2), [a, b, process(2, state="starting")])) == []
    assert told(plan(group(2), [a, b, process(2)])) == ["-p-1"]
    drained = process(1, old=True, state="draining")
    assert told(plan(group(2), [a, drained, process(2)])) == ["+p-3"]
    assert told(plan(group(2), [a, process(1), process(2)])) == ["-p-0"]


def test_who_is_stuck_is_killed() -> None:
    long = DRAIN_SECONDS + 1
    assert told(plan({}, [process(0, state="draining", seconds=long)])) == ["!p-0"]
    assert told(plan({}, [process(0, state="draining", seconds=1)])) == []
    ill = process(0, state="failed", seconds=ILL_SECONDS + 1)
    assert told(plan(group(1), [ill])) == ["!p-0", "+p-1"]


STATES = st.sampled_from(["starting", "ready", "ready", "draining", "failed"])
PROCESSES = st.lists(
    st.builds(
        process,
        number=st.integers(0, 12),
        old=st.booleans(),
        state=STATES,
        streams=st.integers(0, 3),
    ),
    max_size=8,
    unique_by=lambda each: each.id,
)


@given(PROCESSES, st.integers(0, 4))
def test_what_is_ready_is_never_taken_below_what_is_wanted(
    running: list[RunningProcess], replicas: int
) -> None:
    actions = plan(group(replicas), running)
    drained = {action.id for action in actions if isinstance(action, Drain)}
    ready = {each.id for each in running if each.state == "ready"}
    assert len(ready - drained) >= min(len(ready), replicas)
    started = [action.launch.id for action in actions if isinstance(action, StartProcess)]
    assert len(set(started)) == len(started)
    assert not {*started} & {each.id for each in running}


@given(PROCESSES, st.integers(0, 4))
@settings(max_examples=examples(200))
def test_any_picture_becomes_what_is_wanted(running: list[RunningProcess], replicas: int) -> None:
    for _ in range(40):
        actions = plan(group(replicas), running)
        if not actions and all(each.state == "ready" for each in running):
            break
        running = carry_out(actions, running)
    assert len(running) == replicas
    assert {each.fingerprint for each in running} <= {fingerprint(NEW)}


def carry_out(actions: list[Action], running: list[RunningProcess]) -> list[RunningProcess]:
    """The next picture: who started is ready, who drained is gone, who was ill has died."""
    gone = {action.id for action in actions if isinstance(action, Drain)}
    stays = [
        each for each in running if each.id not in gone and each.state not in ("draining", "failed")
    ]
    became = [process(int(each.id[2:]), old=each.fingerprint != fingerprint(NEW)) for each in stays]
    started = [action.launch for action in actions if isinstance(action, StartProcess)]
    new = [process(int(launch.id[2:]), state="starting") for launch in started]
    return became + new


def test_at_the_end_edges_have_half_a_minute_and_nodes_less() -> None:
    """An edge that drained for its longest stream has as long as the others, from now on."""
    edge = process(0, id="e-0", owner="e", kind="edge", state="draining", seconds=300.0)
    node = process(0, state="draining", seconds=16.0)

    def at(seconds: float, lingering: float = 0.0) -> list[str]:
        running = {"e-0": edge, "p-0": node}
        return told(
            plan({}, running.values(), (), DrainTimeouts.at_end(running, seconds, lingering))
        )

    assert told(plan({}, [edge, node])) == []
    assert at(34.0) == []
    assert at(36.0) == ["!e-0"]
    assert at(36.0, lingering=4.0) == []
    assert at(40.0, lingering=4.0) == ["!e-0"]
    alone = DrainTimeouts.at_end({"p-0": node}, 1.0, 0.0)
    assert told(plan({}, [node], (), alone)) == ["!p-0"]
    assert told(plan({}, [process(0, state="draining", seconds=14.0)], (), alone)) == []
