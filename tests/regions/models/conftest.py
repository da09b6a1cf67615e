"""A store of models, and a small file for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.regions.tiny_model import write_bpe

from skerry_regions.models.store import ModelStore


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    folder.mkdir()
    return write_bpe(folder / "tiny.gguf")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "home")
