"""Paths for the unix sockets of many processes, short enough for the kernel."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

MAX_PATH_BYTES = 100  # unix sockets take 108 on Linux, 104 on macOS
MAX_NAME = 40  # longer names are hashed


@dataclass(frozen=True, slots=True)
class SocketFolder:
    """A folder of sockets that only its owner may enter."""

    root: Path

    @classmethod
    @contextlib.contextmanager
    def create(cls, run: Path) -> Generator[SocketFolder]:
        """Make a folder below `run`, or in a temporary place where that is too deep; removed at the
        end."""
        root = run / "nodes"
        if len(os.fsencode(root)) + MAX_NAME + len("/.gateway~01234567") > MAX_PATH_BYTES:
            root = Path(tempfile.mkdtemp(prefix="skerry-"))
        else:
            shutil.rmtree(root, ignore_errors=True)  # of a predecessor that was killed
            root.mkdir(mode=0o700)
        try:
            yield cls(root)
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def path(self, name: str, kind: str) -> Path:
        if len(name) > MAX_NAME:
            name = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        return self.root / f"{name}.{kind}"
