"""A small model that is packed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.core.random_models import random_weights, write_safetensors
from tests.core.weights.packed_folders import CONFIG


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's."""
    (tmp_path / "model").mkdir()
    return write_safetensors(tmp_path / "model", CONFIG, random_weights(CONFIG)).parent
