"""Keys of zones, and zones that stay signed. What needs `cryptography` is imported when it is used:
servers without a key need none.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import dns.name

from skerry_edge.cli.output import note, say
from skerry_edge.cli.parts import CannotStart, read_topology
from skerry_edge.cli.state import Home
from skerry_edge.geo.zone import Zone

if TYPE_CHECKING:
    from skerry_edge.geo.signed_zone import SignedZone
    from skerry_edge.geo.zone_key import ZoneKey

RENEWAL_SECONDS = 60.0  # between looks at signatures …
RENEWED_AT_ONCE = 50  # … of which so many are made in a row: some 10 ms
PAUSE = 1.0  # seconds, then, for queries


def keygen(topology: Path, home: Home) -> None:
    """Draw the key of a topology's zone, unless there is one, and say its DS record.

    Raises `CannotStart`.
    """
    spec = read_topology(topology).dns
    if spec is None:
        raise CannotStart(f"{topology}: there is no `dns` section")
    path = home.zone_key(spec.zone)
    key = load_zone_key(path)
    if key is None:
        with _told():
            from skerry_edge.geo.zone_key import ZoneKey

            key = ZoneKey.create(path)
        note(f"The key of {spec.zone} is in {path}: keep a copy in a safe place.")
    note("The zone's parent needs this record:")
    say(key.ds(dns.name.from_text(spec.zone)))


def load_zone_key(path: Path) -> ZoneKey | None:
    """The key, or None where there is no file. Raises `CannotStart`."""
    if not path.exists():
        return None
    with _told():
        from skerry_edge.geo.zone_key import ZoneKey

        return ZoneKey.load(path)


@contextlib.contextmanager
def _told() -> Generator[None]:
    """What is wrong with a key, or missing for it, as `CannotStart`."""
    try:
        from skerry_edge.geo.zone_key import KeyUnusable
    except ImportError:
        raise CannotStart("signed zones need `pip install 'skerry[dnssec]'`") from None
    try:
        yield
    except KeyUnusable as error:
        raise CannotStart(str(error)) from None


def sign_zone(zone: Zone, key: ZoneKey) -> SignedZone:
    """With its static records signed."""
    from skerry_edge.geo.signed_zone import SignedZone

    signed = SignedZone(zone, key)
    signed.presign(time.time())
    return signed


async def keep_signed(signed: SignedZone) -> None:
    """Renew signatures, until cancelled."""
    while True:
        made = signed.renew(time.time(), RENEWED_AT_ONCE)
        await asyncio.sleep(PAUSE if made == RENEWED_AT_ONCE else RENEWAL_SECONDS)
