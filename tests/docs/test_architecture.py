"""docs/architecture.md names no file that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
SECTION = re.compile(r"^### `([\w/]+)`.*?(?=^##)", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"`([\w/]+(?:\.(?:py|yaml)|/))`")


def named_files() -> list[str]:
    return [
        f"{section[1]}/{name}"
        for section in SECTION.finditer(PAGE)
        for row in re.findall(r"^\| (`.*?) \|", section[0], re.MULTILINE)
        for name in NAME.findall(row)
    ]


def test_all_parts_are_described() -> None:
    parts = {"sdk", "core", "regions", "edge", "infra"}
    assert {name.partition("/")[0] for name in named_files()} == parts


@pytest.mark.parametrize("name", named_files())
def test_a_named_file_exists(name: str) -> None:
    assert (ROOT / name).exists()
