"""How many cores there are to use."""

from __future__ import annotations

import pytest

from skerry_edge.cli.machine import MOST_THREADS, cores_of, default_threads


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [("max 100000\n", None), ("200000 100000\n", 2), ("150000 100000", 1), ("5000 100000", 1)],
)
def test_a_containers_quota(cpu_max: str, cores: int | None) -> None:
    assert cores_of(cpu_max) == cores


@pytest.mark.parametrize("cpu_max", ["", "max", "fast 100000", "1 2 3"])
def test_what_is_no_quota(cpu_max: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        cores_of(cpu_max)


def test_this_machine() -> None:
    assert 1 <= default_threads() <= MOST_THREADS
