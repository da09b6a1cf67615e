"""docs/models.md lists the families and formats that can be opened."""

from __future__ import annotations

import re
from pathlib import Path

from skerry_core.models.registry import FAMILIES
from skerry_core.weights.gguf import GGUF_FORMATS
from skerry_regions.models.local_model import EMBEDDERS, ENCODERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text()


def row(name: str) -> str:
    found = re.search(rf"^\| {re.escape(name)} \| (.*) \|$", PAGE, re.MULTILINE)
    assert found is not None, name
    return re.sub(r"\([^)]*\)", "", found[1])


def test_families_and_formats() -> None:
    assert re.findall(r"`([\w-]+)`", row("families that make text")) == list(FAMILIES)
    in_gguf = [name for name in FAMILIES.values() if name is not None]
    assert re.findall(r"`([\w-]+)`", row("in GGUF")) == in_gguf
    read = row("families that embed, classify or rank")
    assert tuple(re.findall(r"`([\w-]+)`", read)) == ENCODERS + EMBEDDERS
    assert set(row("formats of GGUF tensors").strip().split(", ")) == set(GGUF_FORMATS)
