"""What of a request's schemas grammars do not hold, to be named in a header."""

from __future__ import annotations

from typing import Final

MAX_NAMED: Final = 32  # of one request
MAX_WHERE: Final = 500  # characters of a path

Path = tuple["Path", str] | str
"""The path of a value in a request: joined only for a message, since it may be long."""


class Unenforced:
    """The paths of keywords that were left out, the first `MAX_NAMED` of them."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.number = 0

    def add(self, path: Path) -> None:
        """Name a keyword."""
        self.number += 1
        if len(self.paths) < MAX_NAMED:
            self.paths.append(joined(path))

    def named(self) -> tuple[str, ...]:
        """Return the paths, and how many more there are."""
        more = self.number - len(self.paths)
        return (*self.paths, f"...{more}") if more else tuple(self.paths)


def joined(path: Path) -> str:
    """Return a path as text, the beginning of a long one."""
    parts: list[str] = []
    while not isinstance(path, str):
        path, part = path
        parts.append(part[:MAX_WHERE])
    return "".join([path, *reversed(parts)])[:MAX_WHERE]
