"""Files of their owner's: whole or not at all, and nothing is left beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry_regions.private_files import create_file, replace_file


def test_a_file_is_replaced_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_there_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    create_file(path, b"first")
    create_file(path, b"second")
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_put_leaves_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "nowhere" / "file", b"new")
