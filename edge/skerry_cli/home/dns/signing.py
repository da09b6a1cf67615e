"""Keys of zones, and zones that stay signed. What needs `cryptography` is imported when it is used:
servers without a key need none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import dns.name

from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.state import Home
from skerry_cli.output import note, say
from skerry_dns.zone.zone import Zone

if TYPE_CHECKING:
    from skerry_dns.signing.signed_zone import SignedZone
    from skerry_dns.signing.zone_keys import ZoneKeys

RENEWAL_SECONDS = 60.0  # between looks at signatures …
RENEWED_AT_ONCE = 50  # … of which so many are made in a row: some 10 ms
PAUSE = 1.0  # seconds, then, for queries


def keygen(zone: str, home: Home) -> None:
    """Draw the key of a zone, unless there is one, and say its DS record. Raises `CannotStart`."""
    path = home.zone_key(zone)
    with told():
        from skerry_dns.signing.zone_key import ZoneKey

        if path.exists():
            key = ZoneKey.load(path)
        else:
            key = ZoneKey.create(path)
            note(f"The key of {zone} is in {path}: keep a copy in a safe place.")
    note("The zone's parent needs this record:")
    say(key.ds(dns.name.from_text(zone)))


@contextlib.contextmanager
def told() -> Generator[None]:
    """Raise what is wrong with a key, or missing for it, as `CannotStart`."""
    try:
        from skerry_dns.signing.zone_key import KeyUnusable
    except ImportError:
        raise CannotStart(
            "signed zones need `pip install '.[dnssec]'` in Skerry's repository"
        ) from None
    with raised_as(CannotStart, KeyUnusable):
        yield


def load_zone_keys(path: Path, now: float) -> ZoneKeys | None:
    """Return what the zone's keys do at a time (Unix seconds), or None where it has no key.

    Raises `CannotStart`.
    """
    if not _has_key_files(path):
        return None
    with told():
        from skerry_dns.signing.zone_keys import KeyFiles

        return KeyFiles(path).at(now)


def _has_key_files(path: Path) -> bool:
    """Return whether any of a zone's exist, so that one which is missing beside others is an error.
    Raises `CannotStart`."""
    try:
        return any(name.startswith(path.name) for name in os.listdir(path.parent))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CannotStart(f"cannot read {path.parent}: {error.strerror}") from None


def sign_zone(zone: Zone, keys: ZoneKeys, now: float, before: SignedZone | None) -> SignedZone:
    """Return the zone with its static records signed, as far as they are not in the zone
    `before`."""
    from skerry_dns.signing.signed_zone import SignedZone

    signed = SignedZone(zone, keys.signing, keys.beside)
    signed.presign(now, before)
    return signed


async def keep_signed(current: Callable[[], SignedZone | None], clock: Callable[[], float]) -> None:
    """Renew signatures of the zone that is served, until cancelled."""
    while True:
        signed = current()
        made = 0 if signed is None else signed.renew(clock(), RENEWED_AT_ONCE)
        await asyncio.sleep(PAUSE if made == RENEWED_AT_ONCE else RENEWAL_SECONDS)
