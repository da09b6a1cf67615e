"""What processes of one machine read of each other, written again with every change: where all are,
which edges need where the registry is away, and what relays pass on to."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import msgspec

from skerry_regions.process.emulation import relay
from skerry_regions.process.launch_folder import LaunchFolder, LaunchRecord, replace_file
from skerry_regions.process.socket_paths import SocketPaths
from skerry_regions.registry import Member

RELAYED = {"node": ("node", "kv"), "edge": ("gateway",)}  # that other regions reach


def write_neighbours(
    files: LaunchFolder, sockets: SocketPaths, records: Collection[LaunchRecord]
) -> None:
    """Write down what runs. On a full disk that is done with the next change."""
    reached = tuple(
        (sockets.address(record.id, kind), record.region)
        for record in records
        for kind in RELAYED.get(record.kind, ())
    )
    members = [placed for record in records if (placed := placed_member(record)) is not None]
    with contextlib.suppress(OSError):
        data = msgspec.json.encode(members)
        replace_file(files.placed, files.placed.with_suffix(".placed-draft"), data)
    for record in records:
        if record.kind == "relays":
            with contextlib.suppress(OSError):
                relay(files.path(record.id, "relays"), reached)


def placed_member(record: LaunchRecord) -> Member | None:
    """Return a node or an edge as who has started it knows it; None of other processes."""
    if record.kind == "relays" or record.kind == "dns":
        return None
    return Member(
        id=record.id,
        kind=record.kind,
        region=record.region,
        residency=record.residency,
        address=record.address if record.kind == "node" else "",
        model=record.model,
        gateway=record.gateway,
    )
