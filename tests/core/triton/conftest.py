"""Models and the interpreter that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.core.paged_kv import DEVICE
from tests.core.random_models import random_weights, write_safetensors
from tests.core.runners.runner_suite import MODELS
from tests.core.triton.interpreter import patched_once


@pytest.fixture(scope="package", autouse=True)
def _interpreter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patches:
        if DEVICE.type == "cpu":
            patched_once(patches)
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """All as safetensors: a GPU's machine has nothing that writes GGUF."""
    found = {}
    for name, config in MODELS.items():
        folder = tmp_path_factory.mktemp(name)
        found[name] = write_safetensors(folder, config, random_weights(config, seed=len(name)))
    return found
