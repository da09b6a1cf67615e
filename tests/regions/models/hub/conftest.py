"""A hub with a model in two quantisations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.regions.models.hub_server import LocalHub, Repo, serving
from tests.regions.tiny_model import write_openable


@pytest.fixture
def gguf(tmp_path: Path) -> bytes:
    return write_openable(tmp_path / "made.gguf").read_bytes()


@pytest.fixture
def hub(gguf: bytes) -> Iterator[LocalHub]:
    files = {"README.md": b"# Hello", "tiny-Q4_K_M.gguf": gguf, "tiny-Q8_0.gguf": gguf + b"\0"}
    with serving(LocalHub({"me/tiny-GGUF": Repo(files)})) as hub:
        yield hub
