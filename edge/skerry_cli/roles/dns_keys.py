"""`skerry dns keys`: from a zone's key to the next one. See `skerry_dns.signing.rollover`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import dns.name

from skerry_cli.home.dns.signing import told
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.state import Home
from skerry_cli.output import note, say


def keys(step: str, zone: str, home: Home, now: float | None = None) -> None:
    """Take a step, and say where that leads. `now` is Unix seconds. Raises `CannotStart`."""
    path = home.zone_key(zone)
    now = time.time() if now is None else now
    with told():
        if not path.exists():
            raise CannotStart(f"{zone} has no key: `skerry dns keygen` draws one")
        from skerry_dns.signing.zone_keys import KeyFiles

        files = KeyFiles(path)
        match step:
            case "roll":
                files.roll(now)
                note(f"The next key is in {files.next_path}: every server of the zone needs it,")
                note(f"and {files.rollover_path} too, within a day.")
            case "confirm":
                files.confirm(now)
            case "finish":
                files.finish(now)
                note(f"The old key is gone; the new one is in {path}.")
            case _:
                pass
        _show(path, dns.name.from_text(zone), now)


def _show(path: Path, origin: dns.name.Name, now: float) -> None:
    from skerry_dns.signing.rollover import Stage
    from skerry_dns.signing.zone_key import ZoneKey
    from skerry_dns.signing.zone_keys import KeyFiles

    files = KeyFiles(path)
    rollover, stage = files.rollover(), files.stage(now)
    if rollover is None:
        say(ZoneKey.load(path).ds(origin))
        return
    match stage:
        case Stage.PUBLISHED:
            note(f"The next key is published, and signs from {_date(rollover.signs_at)} on.")
        case Stage.SIGNING if rollover.done_at is None:
            note("The new key signs. Once the zone's parent has this record, and no other of")
            note("this zone, say so with `skerry dns keys confirm`:")
        case Stage.SIGNING:
            note(f"The old key is needed until {_date(rollover.done_at or 0.0)}.")
        case _:
            note("The old key is needed no more: `skerry dns keys finish` forgets it.")
    if stage is not Stage.PUBLISHED and (held := files.at(now)) is not None:
        say(held.signing.ds(origin))


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
