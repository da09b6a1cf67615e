"""What a topology becomes before processes start: threads, and paths for sockets."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from skerry_edge.cli.fleet import share_threads
from skerry_edge.cli.sockets import MAX_PATH_BYTES, SocketFolder
from skerry_regions.topology import Pool


def pool(threads: int | None = None) -> Pool:
    return Pool(name="p", region="r", role="hybrid", model="m", threads=threads)


@pytest.mark.parametrize(
    ("written", "cores", "shares"),
    [
        ([None, None], 4, [2, 2]),
        ([None, None, None], 4, [1, 1, 1]),
        ([3, None], 4, [3, 1]),
        ([8, None], 4, [8, 1]),
        ([None] * 6, 2, [1] * 6),
        ([2, 2], 2, [2, 2]),
    ],
)
def test_nodes_share_the_cores(written: list[int | None], cores: int, shares: list[int]) -> None:
    assert share_threads([pool(threads) for threads in written], cores) == shares


def test_sockets_are_their_owners_and_go(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with SocketFolder.create(run) as folder:
        assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700
        (folder.path("a", "node")).touch()
    assert not folder.root.exists()


def test_paths_fit_the_kernel_however_deep_the_home_is(tmp_path: Path) -> None:
    run = tmp_path / ("deep" * 20)
    run.mkdir()
    with SocketFolder.create(run) as folder:
        paths = {folder.path(name * 60, "control") for name in "ab"}
        assert len(paths) == 2
        assert all(len(os.fsencode(path)) <= MAX_PATH_BYTES for path in paths)
