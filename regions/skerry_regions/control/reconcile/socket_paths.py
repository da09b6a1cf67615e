"""Where launched nodes have their sockets: the same for every control plane of a home."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

MAX_PATH_BYTES = 100  # unix sockets take 108 on Linux, 104 on macOS
MAX_NAME = 40  # longer names are hashed
LONGEST_KIND = len("/.control")


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """A folder that only its owner may enter."""

    root: Path

    @classmethod
    def of(cls, home: Path) -> SocketPaths:
        """Return those in the home, or in a temporary place named after it where that is too deep.

        Raises PermissionError when somebody else has made that place.
        """
        root = home / "run" / "sockets"
        if len(os.fsencode(root)) + MAX_NAME + LONGEST_KIND > MAX_PATH_BYTES:
            name = hashlib.blake2b(os.fsencode(home), digest_size=8).hexdigest()
            root = Path(tempfile.gettempdir()) / f"skerry-{os.getuid()}-{name}"
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
        if root.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(f"{root} is not a folder of ours alone")
        return cls(root)

    def path(self, id: str, kind: str) -> Path:
        if len(id) > MAX_NAME:
            id = hashlib.blake2b(id.encode(), digest_size=16).hexdigest()
        return self.root / f"{id}.{kind}"
