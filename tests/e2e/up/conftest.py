"""A home of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import Skerry, new_home

from skerry_regions.models.model_files import ModelFiles


@pytest.fixture
def skerry(tmp_path: Path, default_model: ModelFiles) -> Iterator[Skerry]:
    """A home of the test's own, where nothing runs yet."""
    skerry = new_home(tmp_path, default_model)
    yield skerry
    assert skerry("down", "--timeout", "5").returncode == 0
