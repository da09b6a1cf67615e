"""Files of a home that are the same in every home of the platform, whichever was edited.

Of each file the home remembers what all had last. Who edits it there publishes it, if it is still
what all have; who edits what others have changed meanwhile finds theirs in its place, and his own
beside it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec import Struct

from skerry_cli.home.state import read_record, write_record
from skerry_edge.shared.nats_settings import NatsSettings, SettingsPicture, SharedValue
from skerry_edge.shared.settings_messages import file_write
from skerry_regions.drivers.jetstream.stream import RevisionConflict
from skerry_regions.private_files import replace_file

REJECTED = ".rejected"  # behind the name of a file: what was edited there, and others too

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file, and what raises ValueError for a content that no home could use."""

    name: str
    path: Path
    check: Callable[[], object]


class Agreed(Struct, frozen=True):
    """What all had of a file when this home looked last."""

    revision: int = 0
    digest: str = ""  # "": none


class AgreedFiles(Struct, frozen=True):
    """Content of `shared.json`."""

    version: Literal[1] = 1
    files: dict[str, Agreed] = {}


class SharedFiles:
    """The files of one home. Whoever calls it holds the home's lock."""

    def __init__(self, files: Sequence[SharedFile], memory: Path) -> None:
        """`memory` is where the home remembers what all had."""
        self._files = files
        self._memory = memory
        self._refused: dict[str, str] = {}  # digests of contents that could not be used

    def agree(self, picture: SettingsPicture, settings: NatsSettings) -> None:
        """Take in what others have changed, and publish what was changed here.

        Raises OSError, StateError, StreamFull or Unavailable.
        """
        kept = read_record(self._memory, AgreedFiles) or AgreedFiles()
        agreed = {
            each.name: self._agree(
                each, picture.files.get(each.name), kept.files.get(each.name, Agreed()), settings
            )
            for each in self._files
        }
        if agreed != kept.files:
            write_record(self._memory, AgreedFiles(files=agreed))

    def _agree(
        self, file: SharedFile, shared: SharedValue | None, kept: Agreed, settings: NatsSettings
    ) -> Agreed:
        """Return what all have now, as far as is known."""
        own = _content(file.path)
        if shared is None:  # also servers that forgot
            return kept if own is None else self._published(file, own, Agreed(), settings)
        now = Agreed(shared.sequence, _digest(shared.content))
        if own == shared.content:
            return now
        if now == kept:
            return self._published(file, own, kept, settings)
        if own is not None and _digest(own) != kept.digest:
            rejected = file.path.with_name(file.path.name + REJECTED)
            replace_file(rejected, own)
            logger.error(
                "%s was changed here and elsewhere: what is elsewhere counts, and %s has what was "
                "here",
                file.path,
                rejected.name,
            )
        if shared.content is None:
            file.path.unlink(missing_ok=True)
        else:
            replace_file(file.path, shared.content)
        logger.info("%s is as another home has it", file.path)
        return now

    def _published(
        self, file: SharedFile, own: bytes | None, kept: Agreed, settings: NatsSettings
    ) -> Agreed:
        """Give all homes what this one has in place of what was kept, unless it cannot be used, or
        another was faster; return what all have."""
        if self._refused.get(file.name) == _digest(own):
            return kept
        try:
            file.check()
            sequence = settings.write(file_write(file.name, own, kept.revision))
            return Agreed(sequence, _digest(own))
        except ValueError as error:
            self._refused[file.name] = _digest(own)
            logger.error("no other home gets %s: %s", file.path, error)
        except RevisionConflict:
            logger.debug("%s was changed elsewhere meanwhile", file.path)
        return kept


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _digest(content: bytes | None) -> str:
    return "" if content is None else hashlib.blake2b(content, digest_size=16).hexdigest()
