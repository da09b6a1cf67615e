"""What a control plane is to want when it starts, by who starts it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import convert
from tests.cli.home.test_left_behind import launch

from skerry_cli.composition.control_parts import write_down
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.state import Home
from skerry_regions.control.desired import revisions
from skerry_regions.control.desired.manifest import Manifest
from skerry_regions.control.desired.store import Store
from skerry_regions.process.launch_folder import LaunchFolder

REGION = {"name": "fra", "iata": "FRA"}
EDGE = {"name": "edge", "region": "fra"}
POOL = {"region": "fra", "role": "hybrid", "model": "m"}
FILE = convert({"regions": [REGION], "edges": [EDGE], "pools": [{"name": "a"} | POOL]}, Manifest)
OWN = convert({"regions": [], "pools": [{"name": "own"} | POOL]}, Manifest)


def wanted(store: Store) -> set[str]:
    return {id for (_, id), record in store.desired.records.items() if not record.deleting}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "control.db")


def test_what_a_topology_wanted_stays_for_the_next_start_of_it(
    tmp_path: Path, store: Store
) -> None:
    write_down(FILE, Home(tmp_path), store, is_up=True)
    write_down(FILE, Home(tmp_path), store, is_up=True)
    assert (wanted(store), store.desired.revision) == ({"fra", "edge", "fra-a"}, 1)


def test_it_goes_with_another_start_but_for_what_others_need(tmp_path: Path, store: Store) -> None:
    home = Home(tmp_path)
    write_down(FILE, home, store, is_up=True)
    revisions.apply(OWN, store, actor="token")
    write_down(None, home, store, is_up=False)
    assert wanted(store) == {"fra", "fra-own"}
    assert ("region", "fra") not in store.decisions(revisions.SOURCE)


def test_it_goes_with_a_file_that_does_not_name_it(tmp_path: Path, store: Store) -> None:
    write_down(FILE, Home(tmp_path), store, is_up=True)
    smaller = convert({"regions": [REGION], "edges": [EDGE]}, Manifest)
    write_down(smaller, Home(tmp_path), store, is_up=True)
    assert wanted(store) == {"fra", "edge"}
    write_down(FILE, Home(tmp_path), store, is_up=False)  # that of `skerry control`, which stays
    write_down(None, Home(tmp_path), store, is_up=False)
    assert wanted(store) == {"fra", "edge", "fra-a"}


def test_while_it_runs_only_a_file_takes_over(tmp_path: Path, store: Store) -> None:
    home, folder = Home(tmp_path), LaunchFolder.of_control(tmp_path)
    write_down(FILE, home, store, is_up=True)
    folder.root.mkdir(parents=True)
    process = launch(folder, "fra-a-0", "fra-a", "node")
    try:
        with pytest.raises(CannotStart, match="go on without their supervisor"):
            write_down(None, home, store, is_up=False)
        write_down(FILE, home, store, is_up=False)
        assert wanted(store) == {"fra", "edge", "fra-a"}
        write_down(None, home, store, is_up=False)
    finally:
        process.kill()
        process.wait()
