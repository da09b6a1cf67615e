"""The page of changes begins with the version that the code says."""

from __future__ import annotations

import re
from pathlib import Path

from skerry import __version__

PAGE = Path(__file__).parents[2] / "CHANGELOG.md"


def test_the_first_heading_is_the_version_of_the_code() -> None:
    headings = re.findall(r"^## (\S+)", PAGE.read_text(), re.MULTILINE)
    assert headings[0] == __version__
    assert len(set(headings)) == len(headings)
