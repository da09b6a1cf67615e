"""How a launched process is doing, by what is kept of it and by its own word. Pure."""

from __future__ import annotations

from skerry_regions.control.planning.launcher import (
    SILENT,
    ProcessState,
    RunningProcess,
)
from skerry_regions.process.launch_folder import LaunchRecord
from skerry_regions.registry import Member

AILING_SECONDS = 6.0  # without a healthy answer, before it counts as failed


def judged(
    record: LaunchRecord, pid: int, member: Member | None, now: float, *, silence: float
) -> RunningProcess:
    """Judge a launched process. `member` is its own word under a running lease, without which its
    health counts; `silence` since it last was healthy."""
    state: ProcessState = "starting"
    seconds = now - record.started
    if record.draining_since is not None:
        state, seconds = "draining", now - record.draining_since
    elif record.kind in SILENT or (
        record.was_ready
        and (member is None or member.state == "ready")
        and silence < AILING_SECONDS
    ):
        state = "ready"  # of those that say nothing, as soon as it runs
    elif record.was_ready:
        state, seconds = "failed", silence
    return RunningProcess(
        id=record.id,
        owner=record.owner,
        kind=record.kind,
        region=record.region,
        fingerprint=record.fingerprint,
        pid=pid,
        state=state,
        seconds=seconds,
        streams=member.streams if member is not None else 0,
        address=member.address if member is not None else _address(record),
        control=record.control,
        incarnation=record.incarnation,
        slot=record.slot,
    )


def _address(record: LaunchRecord) -> str:
    """Return where a process is reached as it says itself: an edge by HTTP."""
    if record.kind != "edge":
        return record.address
    return f"{'https' if record.tls else 'http'}://{record.control.removeprefix('tcp:')}"
