"""A platform that is to be harmed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import Skerry, new_home

from skerry_regions.models.model_files import ModelFiles


@pytest.fixture
def skerry(default_model: ModelFiles) -> Iterator[Skerry]:
    """A platform's home at a short path, for its many sockets and the relays beside them."""
    parent = Path(tempfile.mkdtemp(prefix="skerry-faults-"))
    skerry = new_home(parent, default_model)
    kernels = default_model.directory.parents[1] / "cache"  # compiled once for all test runs
    kernels.mkdir(exist_ok=True)
    (skerry.home / "cache").symlink_to(kernels)
    yield skerry
    assert skerry("down", "--timeout", "20").returncode == 0
    shutil.rmtree(parent)
