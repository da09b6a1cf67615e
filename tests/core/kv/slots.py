"""A file tier of small blocks, and what is in each."""

from __future__ import annotations

import random

BLOCK = 5000


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


def block(number: int) -> bytes:
    return random.Random(number).randbytes(BLOCK)
