"""A node that runs removes what nodes before it left in its home, and nothing else."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from skerry_core.kv.file_tier import FileTier
from skerry_regions.node import kv_sweep

pytestmark = pytest.mark.anyio


async def test_files_of_nodes_that_are_gone_go_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / "kv"
    gone, living = (
        FileTier(folder / name, block_bytes=4096, capacity_bytes=1 << 20, identity=b"model")
        for name in ("gone", "living")
    )
    gone.close()
    for name in ("gone", "living"):
        os.utime(folder / name, (0, 0))
    monkeypatch.setattr(kv_sweep, "FIRST_SECONDS", 0.0)
    async with kv_sweep.sweeping(tmp_path), asyncio.timeout(30):
        while (folder / "gone").exists():  # noqa: ASYNC110 - another thread removes it
            await asyncio.sleep(0.01)
        assert [path.name for path in folder.iterdir()] == ["living"]
    living.close()
