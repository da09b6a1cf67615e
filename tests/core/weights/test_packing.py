"""Packing itself: killed, without room, without unnamed files, and how much memory it takes."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.random_models import random_weights, write_safetensors
from tests.core.weights.packed_folders import CONFIG, load

from skerry_core.runners.packing import packed_file
from skerry_core.weights import digests


def test_packing_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """Nor does what fails, as on a full disk."""

    def pieces() -> Iterator[np.ndarray[Any, Any]]:
        yield np.zeros(64, np.uint8)
        assert list(tmp_path.iterdir()) == []  # it has no name yet
        raise OSError("no space left")

    header = packed_file.PackedHeader(
        key="k", config=CONFIG, layouts={}, offsets={}, vector_sizes={}, size=128
    )
    known = digests.FileDigests(tmp_path / "digests.json")
    with pytest.raises(OSError, match="no space left"):
        packed_file.write_packed(tmp_path / "m.packed", header, pieces(), known)
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_unnamed_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is copied to its name."""
    first, _ = load(folder)
    (path,) = folder.parent.glob("*.packed")
    whole = path.read_bytes()
    path.unlink()

    def refuse(*_: object, **__: object) -> None:
        raise OSError("not supported")

    monkeypatch.setattr("os.link", refuse)
    again, was_packed = load(folder)
    assert was_packed
    assert path.read_bytes() == whole
    np.testing.assert_array_equal(again.mapped[0], first.mapped[0])
    assert sorted(each.suffix for each in folder.parent.iterdir()) == ["", ".json", ".packed"]


def test_packing_streams(tmp_path: Path) -> None:
    """What it takes beside the mapped file does not grow with the model."""

    def peak(layers: int) -> int:
        config = replace(
            CONFIG, layers=CONFIG.layers * layers, hidden_size=512, intermediate_size=2048
        )
        folder = tmp_path / str(layers)
        folder.mkdir()
        write_safetensors(folder, config, random_weights(config))
        tracemalloc.start()
        load(folder)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    one = peak(1)
    assert peak(4) < one + (1 << 20)


def test_digests_that_find_no_room_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"1234")
    folder = tmp_path / "cache"

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    known = digests.FileDigests(folder / "digests.json")
    with pytest.raises(OSError, match="No space left"):
        known.keep(file, digests.FileState.of(file.stat()), "0" * 32)
    assert [*folder.iterdir()] == []
