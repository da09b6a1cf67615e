"""The model that benches run: the platform's default one, pulled on first use."""

from __future__ import annotations

import os
from pathlib import Path

from skerry_regions.models.catalog import Catalog, ModelSpec
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.store import ModelStore

MODEL = "@cf/huggingfacetb/smollm2-135m-instruct"


def home() -> Path:
    """Where models and compiled kernels are kept."""
    return Path(os.environ.get("SKERRY_HOME", Path.home() / ".skerry"))


def default_model() -> tuple[ModelSpec, ModelFiles]:
    """The default model's catalog entry and files."""
    spec = Catalog.load(home()).resolve(MODEL)
    return spec, ModelStore(home()).pull(spec, lambda _what, _share: None)
