"""Whole numbers as clients write them, in headers, queries and keys."""

from __future__ import annotations

MAX_DIGITS = 18  # longer ones are beyond every bound, and slow to read


def whole_number(text: str, least: int, most: int) -> int | None:
    """Return the number that decimal digits say; None for anything else, or one out of these
    bounds."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS):
        return None
    number = int(text)
    return number if least <= number <= most else None
