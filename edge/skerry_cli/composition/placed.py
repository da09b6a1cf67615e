"""Where whoever has started an edge has put nodes and other edges, which it writes with each
change."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from skerry_regions.registry import Member

logger = logging.getLogger(__name__)


class PlacedMembers:
    """Those of a file, read again when it was written."""

    def __init__(self, file: Path | None) -> None:
        """None: no one says where they are."""
        self._file = file
        self._stamp: object = None
        self._members: Sequence[Member] = ()

    def __call__(self) -> Sequence[Member]:
        """Return them by its last word."""
        if self._file is None:
            return ()
        try:
            status = self._file.stat()
            stamp = status.st_mtime_ns, status.st_ino
            if stamp != self._stamp:
                data = self._file.read_bytes()
                self._members = msgspec.json.decode(data, type=tuple[Member, ...])
                self._stamp = stamp
        except (OSError, msgspec.DecodeError) as error:
            logger.debug("%s cannot be read: %s", self._file, error)
        return self._members
