"""Threads of the next step: one fewer while they wait for a core, and all again after a while."""

from __future__ import annotations

from skerry_core.runners.team_size import TeamSize


def sizes(team: TeamSize, steps: int, *, lost: float) -> list[int]:
    """Of so many steps of 10 ms, in which as many seconds were lost while all threads ran."""
    most = team.most
    ran = []
    for _ in range(steps):
        ran.append(team.now)
        team.note(0.010, lost if team.now == most else 0.0)
    return ran


def test_all_threads_while_every_one_has_a_core() -> None:
    assert sizes(TeamSize(3), 4, lost=0.003) == [3, 3, 3, 3]


def test_one_fewer_while_a_thread_has_none_and_longer_each_time() -> None:
    team = TeamSize(2)
    assert sizes(team, 12, lost=0.008) == [2, 2, 1, 1, 2, 2, 1, 1, 1, 1, 2, 2]


def test_a_moment_is_borne() -> None:
    team = TeamSize(2)
    for lost in (0.009, 0.001) * 10:
        team.note(0.010, lost)
        assert team.now == 2


def test_all_again_once_each_has_one() -> None:
    team = TeamSize(2)
    sizes(team, 100, lost=0.008)
    after = sizes(team, 200, lost=0.0)
    assert after.index(2) <= 100
    assert set(after[after.index(2) :]) == {2}


def test_never_fewer_than_one() -> None:
    team = TeamSize(3)
    for _ in range(10):
        team.note(0.001, 0.001)
    assert team.now == 1
    assert sizes(TeamSize(1), 3, lost=0.01) == [1, 1, 1]


def test_what_is_worth_less_than_a_thread_is_borne() -> None:
    team = TeamSize(2)
    for lost, size in ((0.0049, 2), (0.0051, 2), (0.0051, 1)):
        team.note(0.010, lost)
        assert team.now == size
