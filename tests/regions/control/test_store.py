"""The database: what is written stays, whole; schemas, copies, and topology files."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.clock import Clock
from tests.regions.control.support import MODEL, new

from skerry_regions.control.desired import revisions
from skerry_regions.control.desired.backup import BackupError, backup, restore
from skerry_regions.control.desired.manifest import parse_manifest
from skerry_regions.control.desired.migrations import VERSION, NewerSchema, migrate, version_of
from skerry_regions.control.desired.resources import POOL, REGION
from skerry_regions.control.desired.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.db"


def opened(path: Path) -> Store:
    return Store(path, clock=Clock(1_700_000_000.0))


def test_what_was_written_is_there_again(path: Path) -> None:
    store = opened(path)
    record = new(store, "regions", name="fra", iata="FRA", residency="eu")
    store.close()
    again = opened(path)
    assert again.desired.get(REGION, "fra") == record
    assert again.desired.revision == 1
    again.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_failed_write_changes_nothing(path: Path) -> None:
    store = opened(path)
    new(store, "regions", name="fra", iata="FRA")
    before = store.desired
    with pytest.raises(ZeroDivisionError), store.writing() as writing:
        assert writing.mark_deleting(before.records["region", "fra"]) / 0
    assert store.desired is before
    store.close()
    again = opened(path)
    assert again.desired.records == before.records
    again.close()


WRITER = """
import sys, itertools
from pathlib import Path
from tests.regions.control.support import new
from skerry_regions.control.desired.store import Store
store = Store(Path(sys.argv[1]))
for number in itertools.count():
    new(store, "regions", name=f"r{number}", iata="FRA")
    print(number, flush=True)
"""


def test_what_was_answered_outlives_a_kill(path: Path, subprocess_env: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        env=subprocess_env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == 20:
            process.kill()
            break
    told = 20 + sum(1 for _ in process.stdout)
    process.stdout.close()
    process.wait()
    store = opened(path)
    assert len(store.desired.of(REGION)) in (told + 1, told + 2)
    assert store.desired.revision == len(store.desired.of(REGION))
    assert len(store.audit(0, 500)) == len(store.desired.of(REGION))
    store.close()


def test_an_empty_database_is_brought_up_to_date(path: Path, tmp_path: Path) -> None:
    database = sqlite3.connect(path, isolation_level=None)
    assert (migrate(database, tmp_path), version_of(database)) == (0, VERSION)
    assert migrate(database, tmp_path) == VERSION
    database.close()


def test_a_database_of_a_newer_version_is_refused(path: Path) -> None:
    opened(path).close()
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("INSERT INTO schema_version VALUES (?, 0)", (VERSION + 1,))
    database.close()
    with pytest.raises(NewerSchema, match=f"schema {VERSION + 1}"):
        opened(path)


def test_a_copy_is_whole_and_can_be_put_back(path: Path, tmp_path: Path) -> None:
    store = opened(path)
    new(store, "regions", name="fra", iata="FRA")
    copy = tmp_path / "copy.db"
    backup(path, copy)
    new(store, "regions", name="iad", iata="IAD")
    store.close()
    former = restore(copy, path)
    store = opened(path)
    assert [record.id for record in store.desired.of(REGION)] == ["fra"]
    store.close()
    assert former is not None
    old = opened(former)
    assert [record.id for record in old.desired.of(REGION)] == ["fra", "iad"]
    old.close()
    assert copy.stat().st_mode & 0o777 == 0o600


def test_what_is_no_copy_is_refused(path: Path, tmp_path: Path) -> None:
    opened(path).close()
    before = path.read_bytes()
    other = tmp_path / "other.db"
    with pytest.raises(BackupError, match="there is no"):
        restore(other, path)
    other.write_bytes(b"no database" * 100)
    with pytest.raises(BackupError, match="not a database"):
        restore(other, path)
    with pytest.raises(BackupError, match="is there already"):
        backup(path, other)
    other.unlink()
    sqlite3.connect(other).close()
    with pytest.raises(BackupError, match="no copy of a control plane"):
        restore(other, path)
    assert path.read_bytes() == before


TOPOLOGY = f"""\
regions:
  - {{name: fra, iata: FRA}}
  - {{name: gru, coordinates: [-23.43, -46.47], residency: br}}
pools:
  - {{name: prefill, region: fra, role: prefill, model: "{MODEL}", replicas: 2, runner: toy}}
  - {{name: decode, region: gru, role: decode, model: "{MODEL}", runner: toy, kv_blocks: 64}}
edges:
  - {{name: edge, region: fra, port: 8787}}
warm_up:
  - {{model: "{MODEL}", system_prompts: ["You are a tide table."]}}
"""


def apply(text: str, store: Store) -> None:
    manifest = parse_manifest(text.encode(), "topology").value
    revisions.apply(manifest, store, actor="test", prunes=True)


def test_a_topology_becomes_what_is_wanted(path: Path) -> None:
    store = opened(path)
    apply(TOPOLOGY, store)
    desired = store.desired
    assert [*desired.regions()] == ["fra", "gru"]
    assert [*desired.pools()] == ["fra-prefill", "gru-decode"]
    assert desired.pools()["fra-prefill"].replicas == 2
    assert desired.edge_nodes()["edge"].port == 8787
    assert desired.deployments()["warm-up-0"].pools == ("fra-prefill", "gru-decode")

    revision = desired.revision
    apply(TOPOLOGY, store)
    assert store.desired.revision == revision, "the same file changes nothing"

    new(store, "pools", name="mine", region="fra", role="hybrid")
    less = TOPOLOGY.replace("kv_blocks: 64", "replicas: 3").partition("warm_up")[0]
    apply(less, store)
    decode = store.desired.pools()["gru-decode"]
    assert (decode.replicas, decode.kv_blocks) == (3, None)
    assert store.desired.records["deployment", "warm-up-0"].deleting
    assert not store.desired.is_deleting(POOL, "fra-mine"), "what others made is left alone"
    store.close()
