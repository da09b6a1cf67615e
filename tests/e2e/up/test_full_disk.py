"""`skerry up` where the disk of its home has not one free page."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.disks import fill, small_disk
from tests.e2e.command import MODEL, Skerry, new_home

from skerry_cli.home.room import START_BYTES
from skerry_regions.models.model_files import ModelFiles

DISK_BYTES = 4 * START_BYTES
ASKED: dict[str, Any] = {"prompt": "The sea", "max_tokens": 2}


@pytest.fixture
def skerry(tmp_path: Path, default_model: ModelFiles) -> Generator[Skerry]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield new_home(disk, default_model)


def answer(skerry: Skerry) -> Any:
    with skerry.ai() as ai:
        return ai.run(MODEL, ASKED)


def logs(skerry: Skerry) -> str:
    return "".join(path.read_text() for path in (skerry.home / "logs").glob("*.log"))


@pytest.mark.slow
def test_a_platform_that_ran_before_starts(skerry: Skerry) -> None:
    """With the room that was kept back; nothing of before or of now is lost."""
    try:
        skerry.up()
        first = answer(skerry)
        token = json.loads((skerry.home / "config.json").read_text())["api_token"]
        reserve = skerry.home / "reserve"
        assert reserve.stat().st_blocks * 512 == START_BYTES
        assert skerry("down").returncode == 0
        fill(skerry.home.parent)
        skerry.up()
        assert not reserve.exists()
        assert json.loads((skerry.home / "config.json").read_text())["api_token"] == token
        assert answer(skerry) == first
    finally:
        assert skerry("down").returncode == 0
    with closing(sqlite3.connect(skerry.home / "usage.db")) as database:
        rows = database.execute("SELECT outcome, output_tokens FROM usage").fetchall()
    assert rows == [("completed", 2), ("completed", 2)]
    assert "Traceback" not in logs(skerry)


def test_a_first_start_says_what_to_do(skerry: Skerry) -> None:
    fill(skerry.home.parent)
    done = skerry("up", "--detach", "--port", "0", "--runner", "toy")
    assert done.returncode == 1
    assert done.stdout == ""
    [said] = done.stderr.splitlines()
    assert said.startswith(f"skerry: the start failed: the disk of {skerry.home} has 0 KiB left")
    assert said.endswith("make room there (models/, cache/ and logs/ take most), and start again")
    assert logs(skerry) == ""
