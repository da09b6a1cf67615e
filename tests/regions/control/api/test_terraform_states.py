"""Terraform states that an earlier version kept: each is a file now, and the routes say so."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import httpx
import pytest
from tests.regions.control.support import Api

from skerry_regions.control.desired.migrations import STEPS, VERSION, version_of
from skerry_regions.control.desired.store import Store

STATE = b'{"version": 4, "serial": 7}'


def earlier_database(home: Path, states: dict[str, bytes | None]) -> Path:
    """As the last version that kept states left it."""
    path = home / "control.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE schema_version (version INTEGER PRIMARY KEY, at REAL)")
        for number, step in enumerate(STEPS[:3], 1):
            database.executescript(step)
            database.execute("INSERT INTO schema_version VALUES (?, 0)", (number,))
        for name, state in states.items():
            values = (name, state, b'{"ID": "one"}')
            database.execute("INSERT INTO terraform_states VALUES (?, ?, ?, 0)", values)
    database.close()
    return path


def test_stored_states_become_files(tmp_path: Path) -> None:
    path = earlier_database(tmp_path, {"prod": STATE, "eu.west-1": b"{}", "locked": None})
    Store(path).close()
    folder = tmp_path / "terraform-states"
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        "prod.tfstate": STATE,
        "eu.west-1.tfstate": b"{}",
    }
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "prod.tfstate").stat().st_mode & 0o777 == 0o600
    with sqlite3.connect(path) as database:
        assert version_of(database) == VERSION
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        assert "terraform_states" not in tables
    database.close()
    Store(path).close()  # and nothing is left to do
    assert len(list(folder.iterdir())) == 2


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    """As when a backup of the earlier version is put back, after Terraform has gone on."""
    for state in (STATE, b"{}", STATE):
        earlier_database(tmp_path, {"prod": state})
        Store(tmp_path / "control.db").close()
        (tmp_path / "control.db").unlink()
    folder = tmp_path / "terraform-states"
    assert (folder / "prod.tfstate").read_bytes() == STATE
    assert (folder / "prod.2.tfstate").read_bytes() == b"{}"
    assert len(list(folder.iterdir())) == 2


def test_states_that_cannot_be_written_stay_in_the_database(tmp_path: Path) -> None:
    path = earlier_database(tmp_path, {"prod": STATE})
    (tmp_path / "terraform-states").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="terraform-states"):
        Store(path)
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT state FROM terraform_states").fetchall() == [(STATE,)]
    database.close()


@pytest.mark.anyio
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "LOCK", "UNLOCK"])
async def test_the_routes_say_where_states_are(tmp_path: Path, method: str) -> None:
    """To whoever asks: Terraform sends another kind of password than operators' tokens."""
    api = Api(tmp_path)
    async with httpx.AsyncClient(
        transport=api.http._transport, base_url="http://control/control/v1"
    ) as terraform:
        answer = await terraform.request(method, "/terraform/states/prod")
    await api.close()
    assert answer.status_code == 410
    assert answer.json()["error"]["type"] == "gone"
    for word in ("SKERRY_HOME/terraform-states/NAME.tfstate", "terraform state push"):
        assert word in answer.json()["error"]["message"]
