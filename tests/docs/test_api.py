"""docs/api.md lists every error that the platform can answer with, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from skerry import SkerryError

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
ROW = re.compile(r"^\| (\d+) \| (\d+)[^|]*\| `(\w+)` \|", re.MULTILINE)


def test_the_table_of_errors() -> None:
    listed = {(int(n), int(status), code) for n, status, code in ROW.findall(PAGE.read_text())}
    served = {
        (kind.number, kind.status, code)
        for code, kind in SkerryError.by_code.items()
        if kind.__module__ == "skerry.errors" and kind.status
    }
    assert listed == served
