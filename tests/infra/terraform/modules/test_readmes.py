"""Each module's README tells its inputs and outputs; cloud modules say how far they were tried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.infra.terraform.modules.tables import FOLDERS, TERRAFORM, with_tables

CLOUDS = {"aws-workers": "aws", "google-workers": "google", "cloudflare-geo": "cloudflare"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_tables_are_of_the_code(folder: Path) -> None:
    assert (folder / "README.md").read_text() == with_tables(folder), (
        "run `python -m tests.infra.terraform.modules.tables`"
    )


@pytest.mark.parametrize("module", CLOUDS)
def test_a_cloud_module_says_what_it_was_checked_by(module: str) -> None:
    schema = json.loads((TERRAFORM / "schemas" / f"{CLOUDS[module]}.json").read_text())
    page = (TERRAFORM / "modules" / module / "README.md").read_text()
    assert "checked by schema, never run in a cloud" in page
    assert f"{CLOUDS[module]} {schema['provider_version']}" in page
