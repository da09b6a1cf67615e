"""Zones: where what a request brings may be, such as `eu`. Every region lies in one.

A request bound to a zone is computed, cached and stored in that zone alone. Three gates keep it so,
each by itself: the router prices no other node, a link to a node of another zone sends nothing, and
a node refuses what is bound to another zone than its own.
"""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta

from skerry.errors import ResidencyUnmet

ZONE_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
Zone = Annotated[str, Meta(pattern=ZONE_PATTERN)]
_ID = re.compile(r"(?:resp_|file-|batch_)?([^.]+)\.")
GLOBAL = "global"  # the zone of whatever names none; a zone like any other


def is_zone(text: str) -> bool:
    """Return whether this may be the name of a zone."""
    return re.fullmatch(ZONE_PATTERN, text) is not None


def id_in(zone: str, prefix: str, unique: str) -> str:
    """Return the id of what is kept in a zone, which any edge can read it from: `resp_eu.3f2a…`.
    Those of the global zone name none, as ids of before zones."""
    return prefix + unique if zone == GLOBAL else f"{prefix}{zone}.{unique}"


def zone_of_id(id: str) -> str | None:
    """Return the zone that an id names; None of one that names none and may be from anywhere."""
    named = _ID.match(id)
    return None if named is None or not is_zone(named[1]) else named[1]


def elsewhere(id: str, zone: str) -> str:
    """Return where else to look for what an edge of `zone` does not have; empty if nowhere."""
    other = zone_of_id(id)
    return "" if other in (None, zone) else f" It is kept in {other!r}: send it to an edge there."


def allows(bound: str | None, zone: str) -> bool:
    """Return whether a request bound to a zone (or to none) may be where `zone` is."""
    return bound in (None, zone)


def check(bound: str | None, zone: str, place: str) -> None:
    """Raises ResidencyUnmet where a request may not be; `place` says what stands there."""
    if not allows(bound, zone):
        raise ResidencyUnmet(
            f"The request is bound to the zone {bound!r}; {place} is in {zone!r}. "
            f"Send it to an edge in {bound!r}."
        )
