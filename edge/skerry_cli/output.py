"""What a command says: answers on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

WIDTH = 80  # of tables
SHORTEST = 8  # that a column is cut to


def say(text: str) -> None:
    """A line of the command's answer."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for the person at the terminal, not part of the answer."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def complain(text: str) -> int:
    """Say what went wrong and what to do; returns the exit status of a failed command."""
    note(f"skerry: {text}")
    return 1


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> str:
    """Return rows below their headers, in columns, no line longer than `width`.

    A header that begins with `>` is of numbers, one with `*` of what is cut where room is short.
    """
    names = [header.lstrip(">*") for header in headers]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    room = {  # what each may lose, by its place
        i: widths[i] - max(len(name), SHORTEST)
        for i, (header, name) in enumerate(zip(headers, names, strict=True))
        if header.startswith("*")
    }
    for _ in range(excess):
        if cuttable := [i for i, left in room.items() if left > 0]:
            widest = max(cuttable, key=lambda i: widths[i])
            widths[widest] -= 1
            room[widest] -= 1
    lines = []
    for row in (names, *rows):
        cells = [
            _cut(cell, size).rjust(size) if header.startswith(">") else _cut(cell, size).ljust(size)
            for header, cell, size in zip(headers, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"
