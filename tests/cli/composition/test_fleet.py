"""What a topology becomes before processes start: threads, and paths for sockets."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry_cli.composition.fleet.processes import FleetProcesses
from skerry_cli.home.parts import Installation, read_topology
from skerry_cli.home.state import Home
from skerry_regions.control.planning.launcher import CoreShare
from skerry_regions.models.catalog import Catalog
from skerry_regions.process.socket_paths import MAX_PATH_BYTES, SocketPaths
from skerry_regions.process.spawning import HeldListener
from skerry_regions.topology.loading import load_topology


@pytest.mark.parametrize(
    ("written", "cores", "shares"),
    [
        ([None, None], 4, [2, 2]),
        ([None, None, None], 4, [1, 1, 1]),
        ([3, None], 4, [3, 1]),
        ([8, None], 4, [8, 1]),
        ([None] * 6, 2, [1] * 6),
        ([2, 2], 2, [2, 2]),
    ],
)
def test_nodes_share_the_cores(written: list[int | None], cores: int, shares: list[int]) -> None:
    share = CoreShare.of((threads, 1) for threads in written)
    assert [threads or share.threads(cores) for threads in written] == shares


def test_sockets_are_their_owners_and_go(tmp_path: Path) -> None:
    folder = SocketPaths.of(tmp_path, "nodes")
    assert stat.S_IMODE(folder.root.stat().st_mode) == 0o700
    folder.path("a", "node").touch()
    assert SocketPaths.of(tmp_path, "nodes").path("a", "node").exists()  # for who comes after us
    folder.remove()
    assert not folder.root.exists()


def test_paths_fit_the_kernel_however_deep_the_home_is(tmp_path: Path) -> None:
    home = tmp_path / ("deep" * 20)
    folder = SocketPaths.of(home, "nodes")
    try:
        paths = {folder.path(name * 60, "control") for name in "ab"}
        assert len(paths) == 2
        assert all(len(os.fsencode(path)) <= MAX_PATH_BYTES for path in paths)
        assert SocketPaths.of(home, "nodes") == folder
    finally:
        folder.remove()


TOPOLOGY = """
regions:
  - {name: fra, iata: FRA}
  - {name: iad, iata: IAD}
pools:
  - {name: p, region: fra, role: hybrid, model: m}
edges:
  - {name: edge, region: fra}
links:
  - {between: [fra, iad], rtt: 0.321}
"""


def test_edges_are_told_of_the_links(tmp_path: Path) -> None:
    """Whatever becomes of the file: an edge that is started again reads the same."""
    file = tmp_path / "topology.yaml"
    file.write_text(TOPOLOGY)
    topology = load_topology(file)
    sockets = SocketPaths.of(tmp_path, "nodes")
    with socket.create_server(("127.0.0.1", 0)) as port:
        processes = FleetProcesses(
            replace(topology, pools=()),
            file.read_bytes(),
            Installation(Catalog.load(), [], []),
            Home(tmp_path),
            sockets,
            {"edge": HeldListener("127.0.0.1", 0, port)},
        )
        processes.write()
        file.unlink()
        [edge] = processes.edges()
        told = Path(edge.command[edge.command.index("--topology") + 1])
        assert read_topology(told).link_priors()["fra", "iad"].rtt == 0.321
