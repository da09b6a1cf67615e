"""Programs that are not installed are unpacked, or the test that needs them says so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests import tools


def test_what_path_has_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tide-table").write_text("#!/bin/sh\n")
    (tmp_path / "tide-table").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tools.program("tide-table", "tides") == str(tmp_path / "tide-table")


def test_where_there_is_none_the_test_is_skipped_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SKERRY_TOOLS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="tide-table is not installed"):
        tools.program("tide-table", "tides")
    monkeypatch.setenv("SKERRY_TOOLS", "required")
    with pytest.raises(pytest.fail.Exception, match="tide-table is not installed"):
        tools.program("tide-table", "tides")


def test_an_unpacked_program_runs_with_what_is_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a package is that was unpacked before: neither root nor network is needed."""
    monkeypatch.setattr(tools, "CACHE", tmp_path)
    (tmp_path / "tides" / "usr/bin").mkdir(parents=True)
    (tmp_path / "tides" / "usr/lib/x86_64-linux-gnu").mkdir(parents=True)
    (tmp_path / "tides" / "complete").touch()
    program = tmp_path / "tides" / "usr/bin" / "tide-table"
    program.write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')
    program.chmod(0o755)
    bin = tmp_path / "bin"
    bin.mkdir()
    for name in ("apt-get", "dpkg"):  # they are there, and not asked
        (bin / name).write_text("#!/bin/sh\nexit 1\n")
        (bin / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    wrapped = tools.program("tide-table", "tides")
    said = subprocess.run([wrapped, "high water"], capture_output=True, text=True, check=True)
    folder, _, rest = said.stdout.strip().partition(" ")
    assert str(tmp_path / "tides" / "usr/lib/x86_64-linux-gnu") in folder.split(":")
    assert rest == "high water"
