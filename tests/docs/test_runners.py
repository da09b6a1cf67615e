"""docs/runners.md says of each back end what it has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from skerry.runners import RUNNERS
from skerry_core.config import FEATURES, BackEnd

PAGE = (Path(__file__).parents[2] / "docs" / "runners.md").read_text()
TABLE = PAGE[PAGE.index("| beyond a plain Llama |") :].partition("\n\n")[0]
BACK_ENDS = get_args(BackEnd)
ROWS = dict(re.findall(r"^\| ([^`|]+) \| ((?:yes|no) .*) \|$", TABLE, re.MULTILINE))


KINDS = re.findall(r"^\| `([\w-]+)`.* \| `skerry\[(\w+)\]` \|$", PAGE, re.MULTILINE)


def test_every_kind_has_a_row_with_what_it_needs() -> None:
    assert [(name, kind.extra) for name, kind in RUNNERS.items()] == KINDS


@pytest.mark.parametrize("page", ["control", "operations", "terraform"])
def test_pages_that_list_the_kinds_list_all(page: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text()
    names = ",? ?(?:or )?".join(rf"[`\"(]*{name}[`\");]*" for name in RUNNERS)
    assert re.search(names, text)


def test_every_feature_has_a_row() -> None:
    assert tuple(ROWS) == tuple(FEATURES)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_back_end_has_what_the_table_says(feature: str) -> None:
    have = FEATURES[feature].back_ends
    assert ROWS[feature].split(" | ") == ["yes" if each in have else "no" for each in BACK_ENDS]
