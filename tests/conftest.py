"""Fixtures that several packages' tests share."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from tests.properties import settle

if TYPE_CHECKING:  # tests of the core run on a machine that has its packages alone
    from skerry_regions.models.catalog import ModelSpec
    from skerry_regions.models.model_files import ModelFiles

DEFAULT_MODEL = "@cf/huggingfacetb/smollm2-135m-instruct"
EMBEDDING_MODEL = "@cf/sentence-transformers/all-minilm-l6-v2"
ROOT = Path(__file__).resolve().parent.parent

settings.load_profile("skerry")  # `--hypothesis-profile=deep` loads the other one after it

# The tests start hundreds of processes. A third of what one costs is the compilation of our own
# source, where an environment forbids Python to keep the result.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Torch reads it when it is imported. Its threads spin while they wait for one another: where other
# workers of the suite use the cores too, a small model takes several times as long on all of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Triton reads it when it is imported; where there is a GPU its kernels are tested there.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure() -> None:
    settle()
    gc.disable()  # until the tests are collected: what their imports make stays anyway


def pytest_collection_finish() -> None:
    gc.enable()
    gc.collect()
    gc.freeze()  # a million objects, at which no later collection need look


@pytest.fixture
def anyio_backend() -> str:
    """What tests marked `anyio` run on."""
    return "asyncio"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is put on it ends with the test, also with one that fails."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def subprocess_env() -> dict[str, str]:
    """Environment in which a child process imports what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(scope="session")
def default_model() -> ModelFiles:
    """The default model's files; mark tests that ask for it with `pytest.mark.model`.

    Kept between runs under SKERRY_TEST_HOME (`.cache/skerry` in the repository). SKERRY_TEST_MODEL
    names a GGUF file to use in place of a download.
    """
    file = os.environ.get("SKERRY_TEST_MODEL")
    return _pulled(DEFAULT_MODEL, Path(file) if file else None)


@pytest.fixture(scope="session")
def embedding_model() -> ModelFiles:
    """The files of the packaged model that embeds, kept like `default_model`'s."""
    return _pulled(EMBEDDING_MODEL, None)


def _pulled(name: str, file: Path | None) -> ModelFiles:
    from skerry_regions.models.catalog import Catalog
    from skerry_regions.models.store import ModelStore

    home = Path(os.environ.get("SKERRY_TEST_HOME", ROOT / ".cache" / "skerry"))
    spec = Catalog.load().resolve(name)
    if file is not None:
        spec = _of_file(spec, file)
    return ModelStore(home).pull(spec, lambda _what, _share: None)


def _of_file(spec: ModelSpec, path: Path) -> ModelSpec:
    """Return the same model, its one file taken from `path` in place of its source."""
    import msgspec

    (file,) = spec.files
    renamed = msgspec.structs.replace(file, name=path.name)
    folder = path.resolve().parent
    return msgspec.structs.replace(spec, source=f"file:{folder}", files=(renamed,))
