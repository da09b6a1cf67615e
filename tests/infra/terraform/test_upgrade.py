"""A platform and a Terraform state that version 0.1 (commit 4ec0a01) left, under this version.

`version_0_1/` was written by that commit: `skerry control`, its provider, and `main.tf` applied.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

from tests.e2e.command import Skerry
from tests.e2e.control.control_client import ControlPlane
from tests.infra.terraform.command import attached, provider_block

from skerry_terraform.provider.provider import SKERRY

BEFORE = Path(__file__).with_name("version_0_1")


def test_the_next_plan_is_empty_and_admin_has_become_a_role(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    for name in ("config.json", "tokens.json"):
        shutil.copy(BEFORE / name, home / name)
    with sqlite3.connect(home / "control.db") as database:
        database.executescript((BEFORE / "control.sql").read_text())
    database.close()
    control = ControlPlane(Skerry(home))
    try:
        url = str(control.http.base_url).removesuffix("/control/v1/")
        with attached(tmp_path / "tf", SKERRY, provider_block(url, control.token)) as terraform:
            shutil.copy(BEFORE / "terraform.tfstate", terraform.folder)
            terraform.write((BEFORE / "main.tf").read_text())
            assert terraform.is_settled()
        tokens = {each["name"]: each for each in control.get("api_tokens")["items"]}
        assert {name: each["role"] for name, each in tokens.items()} == {
            "ci": "operator", "app": None, "tenant": "developer",
        }  # fmt: skip
        assert set(tokens["ci"]["scopes"]) == {"admin", "read"}, "as the configuration says it"
    finally:
        control.stop()
    stored = json.loads((home / "tokens.json").read_text())["tokens"]
    assert {each["name"]: (each["role"], set(each["scopes"])) for each in stored} == {
        "skerry up": ("operator", {"run", "read"}),
        "ci": ("operator", {"read"}),
        "app": (None, {"run", "read"}),
        "tenant": ("developer", {"run", "read"}),
    }
