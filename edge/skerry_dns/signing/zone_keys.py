"""The key files of a zone: one key, or two while one follows the other.

ZONE.key            the key
ZONE.key.next       the one that follows it
ZONE.key.rollover   when the steps from one to the other were taken (`Rollover`, JSON)
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import dns.name
import msgspec

from skerry_dns.signing.rollover import Rollover, Stage, stage_at
from skerry_dns.signing.zone_key import KeyUnusable, ZoneKey
from skerry_regions.private_files import replace_file

MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ZoneKeys:
    """The use of each key at one stage."""

    stage: Stage
    signing: ZoneKey  # of records
    beside: ZoneKey | None = None  # published too, and signs the keys

    @property
    def tags(self) -> tuple[int, ...]:
        """Return the tags of the keys, the one that signs records first."""
        return tuple(key.tag for key in (self.signing, self.beside) if key is not None)

    def records(self, origin: dns.name.Name) -> list[str]:
        """Return DNSKEY, CDS and CDNSKEY, as lines of a zone file."""
        lines = self.signing.records(origin)
        return lines if self.beside is None else [*lines, self.beside.dnskey_line]


class KeyFiles:
    """Of one zone, by the path of its key. Methods raise `KeyUnusable`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.next_path = path.with_name(f"{path.name}.next")
        self.rollover_path = path.with_name(f"{path.name}.rollover")

    def at(self, now: float) -> ZoneKeys | None:
        """Return the keys of a folder; None where there is none."""
        rollover = self.rollover()
        if rollover is None:
            return ZoneKeys(Stage.ALONE, ZoneKey.load(self.path)) if self.path.exists() else None
        stage = stage_at(rollover, now)
        if stage is Stage.DONE:
            return ZoneKeys(stage, self._new(rollover))
        old = self._key(self.path, rollover.old_tag)
        new = self._key(self.next_path, rollover.new_tag)
        if stage is Stage.PUBLISHED:
            return ZoneKeys(stage, old, beside=new)
        return ZoneKeys(stage, new, beside=old)

    def _new(self, rollover: Rollover) -> ZoneKey:
        """Return the new key, which stands in the old one's place where `finish` was cut off."""
        path = self.next_path if self.next_path.exists() else self.path
        return self._key(path, rollover.new_tag)

    def _key(self, path: Path, tag: int) -> ZoneKey:
        """Check that a key is of this rollover: files come one by one from another server."""
        key = ZoneKey.load(path)
        if key.tag != tag:
            raise KeyUnusable(
                f"{path} is key {key.tag}, and {self.rollover_path.name} is of key {tag}: "
                "copy all key files from the server that drew the keys"
            )
        return key

    def stage(self, now: float) -> Stage:
        return stage_at(self.rollover(), now)

    def rollover(self) -> Rollover | None:
        """Return the rollover; None while there is one key."""
        try:
            with self.rollover_path.open("rb") as file:
                return msgspec.json.decode(file.read(MAX_BYTES), type=Rollover)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise KeyUnusable(f"cannot read {self.rollover_path}: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise KeyUnusable(f"{self.rollover_path}: {error}") from None

    def roll(self, now: float) -> ZoneKey:
        """Draw the next key; it is published from now on."""
        if self.rollover() is not None:
            raise KeyUnusable("a new key is on its way already: `skerry dns keys show`")
        old = ZoneKey.load(self.path)
        self.next_path.unlink(missing_ok=True)  # of a roll that was cut off before it began
        new = ZoneKey.create(self.next_path)
        self._write(Rollover(published_at=now, old_tag=old.tag, new_tag=new.tag))
        return new

    def confirm(self, now: float) -> Rollover:
        """Note that the parent has the new key's DS record."""
        rollover = self.rollover()
        if rollover is None:
            raise KeyUnusable("no key is on its way: `skerry dns keys roll` draws one")
        if now < rollover.signs_at:
            raise KeyUnusable("the new key is not in every cache yet: its DS record comes later")
        if rollover.confirmed_at is None:
            rollover = msgspec.structs.replace(rollover, confirmed_at=now)
            self._write(rollover)
        return rollover

    def finish(self, now: float) -> None:
        """Forget the old key. Cut off at any point it can be run again."""
        rollover, stage = self.rollover(), self.stage(now)
        if rollover is None or stage is not Stage.DONE:
            raise KeyUnusable(f"the old key is still needed: the new one is {stage.value}")
        self._new(rollover)  # is there, and is the one
        with contextlib.suppress(FileNotFoundError):  # it was cut off here
            os.replace(self.next_path, self.path)
        self.rollover_path.unlink()

    def _write(self, rollover: Rollover) -> None:
        try:
            replace_file(self.rollover_path, msgspec.json.encode(rollover))
        except OSError as error:
            raise KeyUnusable(f"cannot write {self.rollover_path}: {error.strerror}") from None
