"""Paths of the sockets of a home's processes: the same for each supervisor."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_PATH_BYTES = 100  # unix sockets take 108 on Linux, 104 on macOS
MAX_NAME = 40  # longer names are hashed
LONGEST_KIND = len("/.gateway~01234567")  # with the tag of a relay


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """A folder that only its owner may enter."""

    root: Path

    @classmethod
    def of(cls, home: Path, name: str = "sockets") -> SocketPaths:
        """Return those in the home, or in a temporary place named after it where that is too deep.

        Raises PermissionError when somebody else has made that place.
        """
        root = home / "run" / name
        if len(os.fsencode(root)) + MAX_NAME + LONGEST_KIND > MAX_PATH_BYTES:
            digest = hashlib.blake2b(os.fsencode(root), digest_size=8).hexdigest()
            root = Path(tempfile.gettempdir()) / f"skerry-{os.getuid()}-{digest}"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = root.lstat()
        if root.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(f"{root} is not a folder of ours alone")
        return cls(root)

    def path(self, id: str, kind: str) -> Path:
        if len(id) > MAX_NAME:
            id = hashlib.blake2b(id.encode(), digest_size=16).hexdigest()
        return self.root / f"{id}.{kind}"

    def address(self, id: str, kind: str) -> str:
        """Return the address of the socket `kind` of a process."""
        return f"unix:{self.path(id, kind)}"

    def keep(self, kept: Iterable[tuple[str, str]]) -> None:
        """Remove what is there beside these sockets, of (id, kind), and the relays before them: who
        had it has ended."""
        paths = {self.path(id, kind) for id, kind in kept}
        for path in self.root.iterdir():
            if path.with_name(path.name.partition("~")[0]) not in paths:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all of it: nothing runs that listens there."""
        shutil.rmtree(self.root, ignore_errors=True)
