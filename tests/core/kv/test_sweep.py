"""Files of nodes that are gone go; those of nodes that run, or ran just now, stay."""

from __future__ import annotations

import os
from pathlib import Path

from skerry_core.kv.file_tier import FileTier
from skerry_core.kv.sweep import IDLE_SECONDS, sweep


def test_only_what_nobody_holds_is_removed(tmp_path: Path) -> None:
    now = 10_000_000.0
    gone, held, restarting = (
        FileTier(tmp_path / name, block_bytes=4096, capacity_bytes=1 << 20, identity=b"model")
        for name in ("gone", "held", "just-now")
    )
    gone.close()
    restarting.close()
    for name in ("gone", "held", "just-now"):
        age = 10.0 if name == "just-now" else IDLE_SECONDS + 1
        os.utime(tmp_path / name, (now - age, now - age))
    (tmp_path / "notes.txt").write_bytes(b"of a person's own")
    (tmp_path / "begun").write_bytes(bytes(100))  # its node died before it wrote the header
    for name in ("notes.txt", "begun"):
        os.utime(tmp_path / name, (0, 0))
    assert sweep(tmp_path, now) == [tmp_path / "begun", tmp_path / "gone"]
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["held", "just-now", "notes.txt"]
    held.close()
    assert sweep(tmp_path / "not-there", now) == []
