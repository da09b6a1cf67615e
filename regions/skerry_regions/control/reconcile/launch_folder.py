"""The files of launched processes.

SKERRY_HOME/run/launched/ID.lock    held by the process
                         ID.json    what it was launched as (`LaunchRecord`)
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec

from skerry_regions.control.reconcile.launched import LaunchRecord
from skerry_regions.control.reconcile.socket_paths import SocketPaths

FILES = ("json", "draft", "prompts", "topology", "lock")  # the lock last: it guards the others
SOCKETS = ("node", "kv", "control", "gateway")


class LaunchFolder:
    """Paths of one home's processes, and what is written there."""

    def __init__(self, home: Path) -> None:
        self._root = home / "run" / "launched"
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sockets = SocketPaths.of(home)

    def path(self, id: str, kind: str) -> Path:
        """Return where the file `kind` (of `FILES`) of a process lies."""
        return self._root / f"{id}.{kind}"

    def address(self, id: str, kind: str) -> str:
        """Return the address of the socket `kind` (of `SOCKETS`) of a process."""
        return f"unix:{self._sockets.path(id, kind)}"

    def locks(self) -> list[Path]:
        """Return the locks of all processes that ran or run."""
        return sorted(self._root.glob("*.lock"))

    def write(self, record: LaunchRecord) -> None:
        """Replace a record whole: we may die at any moment. Raises OSError."""
        draft = self.path(record.id, "draft")
        draft.write_bytes(msgspec.json.encode(record))
        os.replace(draft, self.path(record.id, "json"))

    def remove(self, id: str) -> None:
        """Remove everything of a process that has ended."""
        for kind in FILES:
            self.path(id, kind).unlink(missing_ok=True)
        for kind in SOCKETS:
            self._sockets.path(id, kind).unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folders, unless what runs on uses them."""
        for folder in (self._root, self._sockets.root):
            with contextlib.suppress(OSError):
                folder.rmdir()
