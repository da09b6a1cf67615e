"""An encoder of random weights, and a client of an edge that has it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx
import pytest
from tests.core.random_encoders import KERNELS, write_encoder
from tests.edge.api.embeddings.small_encoder import MODEL, client_of, spec_of, write_tokenizer

from skerry_core.encoder.encoder import Encoder
from skerry_regions.models.local_model import describe
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.store import ModelStore


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """An installed encoder."""
    folder = write_encoder(tmp_path_factory.mktemp("encoder"))
    write_tokenizer(folder)
    store = ModelStore(tmp_path_factory.mktemp("home"))
    return store.pull(describe(folder, MODEL), lambda _what, _share: None)


@pytest.fixture(scope="session")
def encoder(files: ModelFiles) -> Generator[Encoder]:
    encoder = Encoder.open(files.weights, threads=1, cache_dir=KERNELS)
    yield encoder
    encoder.close()


@pytest.fixture
async def client(tmp_path: Path, files: ModelFiles) -> AsyncGenerator[httpx.AsyncClient]:
    async with client_of(tmp_path, files, spec_of(files)) as client:
        yield client
