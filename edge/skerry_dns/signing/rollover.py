"""From one key of a zone to the next without a moment in which a validator could not follow.

    roll ──a day──▶ published ──▶ signing ── confirm ──eight days──▶ done
    DNSKEY  old       old, new      old, new                           new
    records signed by old           new                                new
    CDS     old       old           new                                new

The new key is published before it signs, so that every cached set of keys has it. Once it signs,
CDS has the parent take its DS record; when the operator has seen that there, the old key stays
until nothing that needs it can be in a cache. Sets of keys are signed by both all the while. Pure:
what holds follows from when the steps were taken, so servers with the same files agree.
(RFC 7583, with RFC 7344 for CDS.)
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

PUBLISH_SECONDS = 86_400.0  # longer than DNSKEY lives in caches; time to copy it to other servers
RETIRE_SECONDS = 8 * 86_400.0  # longer than DS records, and the longest TTL of a record


class Stage(Enum):
    """Which of two keys does what."""

    ALONE = "alone"  # there is no second one
    PUBLISHED = "published"
    SIGNING = "signing"
    DONE = "done"  # the first one may be forgotten


class Rollover(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The times of its steps, in Unix seconds."""

    published_at: float
    old_tag: int  # key tags (RFC 4034, appendix B): which keys the steps are of
    new_tag: int
    confirmed_at: float | None = None  # the parent has the new key's DS record

    @property
    def signs_at(self) -> float:
        return self.published_at + PUBLISH_SECONDS

    @property
    def done_at(self) -> float | None:
        """Return when it is done, in Unix seconds; None while it is not confirmed."""
        if self.confirmed_at is None:
            return None
        return max(self.confirmed_at, self.signs_at) + RETIRE_SECONDS


def stage_at(rollover: Rollover | None, now: float) -> Stage:
    """Return the stage at `now` (Unix seconds)."""
    if rollover is None:
        return Stage.ALONE
    if now < rollover.signs_at:
        return Stage.PUBLISHED
    if rollover.done_at is None or now < rollover.done_at:
        return Stage.SIGNING
    return Stage.DONE
