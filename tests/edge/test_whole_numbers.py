"""What counts as a whole number of a client's."""

from __future__ import annotations

import pytest

from skerry_edge.whole_numbers import whole_number


@pytest.mark.parametrize(
    ("text", "number"),
    [("1", 1), ("100", 100), ("007", 7), ("0", None), ("101", None), ("1000000000", None)],
)
def test_bounds(text: str, number: int | None) -> None:
    assert whole_number(text, 1, 100) == number


@pytest.mark.parametrize("text", ["", " 1", "+1", "-1", "1.0", "1e1", "1_0", "٣", "²", "0" * 5000])
def test_other_text(text: str) -> None:
    assert whole_number(text, 0, 100) is None
