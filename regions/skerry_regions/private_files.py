"""Small files that only their owner can read, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, whether or not there is one. Raises OSError."""
    with _draft(path, content) as draft:
        os.replace(draft, path)


def create_file(path: Path, content: bytes) -> None:
    """Write a file unless it is there already. Raises OSError."""
    with _draft(path, content) as draft, contextlib.suppress(FileExistsError):
        os.link(draft, path)


@contextlib.contextmanager
def _draft(path: Path, content: bytes) -> Generator[str]:
    """Write the content beside where it is to be, on disk; gone in the end (mkstemp's mode is
    0600)."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        with contextlib.suppress(OSError):  # it may be in its place
            os.unlink(draft)
