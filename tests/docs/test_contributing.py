"""CONTRIBUTING.md names files and commits that are there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
PATHS = re.findall(r"`((?:sdk|core|regions|edge|tests)/[\w/.]+)`", PAGE)
COMMITS = re.findall(r"`([0-9a-f]{7})`", PAGE)


@pytest.mark.parametrize("path", PATHS)
def test_a_named_path_exists(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("commit", COMMITS)
def test_a_named_commit_is_of_this_history(commit: str) -> None:
    """Where the history is there: an export has none, a shallow clone a part."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)

    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("the history is not here")
    assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
