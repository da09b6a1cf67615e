"""The console of a platform that runs: the address that is printed, and what is in the wheel."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import httpx
import pytest
from tests.e2e.command import ROOT, new_home

from skerry_regions.models.model_files import ModelFiles

OWN = {"x-skerry-console": "1"}
ADDRESS = re.compile(r"(http://127\.0\.0\.1:\d+)/console/#login=(\S+)")


def logged_in(address: str) -> tuple[int, dict[str, object]]:
    """What the exchange of an address's code answers."""
    match = ADDRESS.search(address)
    assert match is not None, address
    assert httpx.get(f"{match[1]}/", headers=OWN).headers["location"] == "/console/"
    reply = httpx.post(f"{match[1]}/console/login", json={"code": match[2]}, headers=OWN)
    told: dict[str, object] = reply.json()
    return reply.status_code, told


@pytest.mark.model
def test_the_printed_address_logs_in_once(default_model: ModelFiles, tmp_path: Path) -> None:
    skerry = new_home(tmp_path, default_model)
    try:
        printed = skerry.up("--log", "text")
        status, told = logged_in(printed)
        assert (status, told["role"], told["edge"]) == (200, "operator", "edge-1")
        assert logged_in(printed)[0] == 401
        again = skerry("console")
        assert (again.returncode, logged_in(again.stdout)[0]) == (0, 200)
        assert skerry("console", "--edge", "edge-9").returncode == 1
        status, told = logged_in(skerry("console", "--control").stdout)
        assert (status, told["role"], told["site"]) == (200, "operator", "control")
        logs = [path.read_text() for path in (skerry.home / "logs").iterdir()]
        assert [each for each in logs if "#login=" in each] == []
    finally:
        skerry("down")
    ended = skerry("console")
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.model
def test_it_may_be_off(default_model: ModelFiles, tmp_path: Path) -> None:
    skerry = new_home(tmp_path, default_model)
    try:
        report = json.loads(skerry.up("--console", "off"))
        assert report["console"] is None
        assert httpx.get(f"{report['url']}/console/").status_code == 401
    finally:
        skerry("down")


@pytest.mark.slow
def test_the_wheel_has_the_consoles_files(tmp_path: Path) -> None:
    builders = pytest.importorskip("hatchling.builders.wheel")
    [wheel] = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    console = "skerry_edge/console/"
    folders = {"static": ROOT / "edge" / console / "static", "docs": ROOT / "docs"}
    with zipfile.ZipFile(wheel) as files:
        packed = {name: files.read(name) for name in files.namelist() if name.startswith(console)}
    assert f"{console}docs.html" in packed
    for name, folder in folders.items():
        prefix = f"{console}{name}/"
        here = [path for path in folder.rglob("*") if path.is_file()]
        assert len(here) > 20
        assert {path: held for path, held in packed.items() if path.startswith(prefix)} == {
            prefix + path.relative_to(folder).as_posix(): path.read_bytes() for path in here
        }
