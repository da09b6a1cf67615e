"""API tokens of all homes: records on NATS servers, of which each home's file is a picture."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from skerry.errors import Unavailable
from skerry_edge.gate.token_file import (
    TokenRecord,
    TokenRecords,
    TokenStoreError,
    check_number,
)
from skerry_edge.shared.nats_settings import NatsSettings, SettingsPicture
from skerry_edge.shared.settings_messages import token_write
from skerry_regions.drivers.jetstream.stream import RevisionConflict, Write


class NatsTokenRecords(TokenRecords):
    """Reads the file, as `TokenRecords` does, and changes what the servers have."""

    def __init__(self, path: Path, settings: NatsSettings) -> None:
        super().__init__(path)
        self._settings = settings
        self._followed = -1  # the revision of the last picture

    @contextlib.contextmanager
    def changing(self) -> Generator[dict[str, TokenRecord]]:
        """See `TokenRecords.changing`. Of two homes that change one token at once, one raises."""
        try:
            known = self._settings.current()
            before = {each.id: each for each in known.token_file.tokens}
            records = dict(before)
            yield records
            gone = before.keys() - records.keys()
            changed = [each for id, each in records.items() if each != before.get(id)]
            if not changed and not gone:
                return
            check_number(len(records), "the stream of settings")
            for each in changed:
                self._settings.write(_write(known, each.id, each))
            # Whose parent is gone works no more, whether or not the rest comes to be written.
            for id in sorted(gone, key=lambda id: before[id].parent in gone):
                self._settings.write(_write(known, id, None))
            with contextlib.suppress(Unavailable):  # it is done; the file follows
                self.take_in(self._settings.current().token_file)
        except RevisionConflict as error:
            raise TokenStoreError(f"{error}: repeat what was to be changed") from None
        except Unavailable as error:
            raise TokenStoreError(f"tokens cannot be changed now: {error.message}") from None

    def follow(self, picture: SettingsPicture) -> None:
        """Have the file be as the picture. Tokens of a file that is not this stream's are added to
        it: what a home had before, and what servers have forgotten. Raises TokenStoreError,
        `StreamFull` or `Unavailable`."""
        is_of_stream = self.picture()[0] == picture.stream
        if is_of_stream and self._followed == picture.revision:
            return
        if not is_of_stream:
            lacking = [each for id, each in self.read().items() if id not in picture.tokens]
            if lacking:
                self._settings.add([token_write(each.id, each, 0) for each in lacking])
                picture = self._settings.current()
        self.take_in(picture.token_file)
        self._followed = picture.revision


def _write(known: SettingsPicture, id: str, record: TokenRecord | None) -> Write:
    token = known.tokens.get(id)
    return token_write(id, record, 0 if token is None else token.sequence)
