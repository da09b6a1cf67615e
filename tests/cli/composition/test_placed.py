"""Edges read where others are, again with each change."""

from __future__ import annotations

import os
from pathlib import Path

from skerry_cli.composition.placed import PlacedMembers
from skerry_regions.control.reconcile.neighbours import write_neighbours
from skerry_regions.process.launch_folder import LaunchedKind, LaunchFolder, LaunchRecord
from skerry_regions.process.socket_paths import SocketPaths
from skerry_regions.registry import Member


def record(
    id: str, kind: LaunchedKind, *, address: str = "", model: str = "", gateway: str = ""
) -> LaunchRecord:
    return LaunchRecord(
        id=id, owner=id, kind=kind, region="fra", fingerprint="f", control="", started=1.0,
        residency="eu", address=address, model=model, gateway=gateway,
    )  # fmt: skip


def test_what_runs_is_placed_and_what_ended_is_not(tmp_path: Path) -> None:
    files, sockets = LaunchFolder(tmp_path / "launched"), SocketPaths.of(tmp_path)
    files.claim(1)
    members = PlacedMembers(files.placed)
    assert members() == ()
    node = record("n-0", "node", address="unix:/n-0", model="m")
    edge = record("e-0", "edge", address="tcp:127.0.0.1:1", gateway="unix:/e-0")
    write_neighbours(files, sockets, [node, edge, record("d", "dns")])
    told = Member(
        id="n-0", kind="node", region="fra", residency="eu", address="unix:/n-0", model="m"
    )
    there = Member(id="e-0", kind="edge", region="fra", residency="eu", gateway="unix:/e-0")
    assert members() == (told, there)
    write_neighbours(files, sockets, [edge])
    assert members() == (there,)
    files.placed.write_text("{")
    os.utime(files.placed, (1, 1))
    assert members() == (there,), "what was read last stands"
    files.placed.unlink()
    assert members() == (there,)
