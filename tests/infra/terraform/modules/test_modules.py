"""Every module and example: formatted, valid by its providers' schemas, and its own tests pass."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.infra.terraform.command import Terraform
from tests.infra.terraform.modules.stand_in import stand_in
from tests.infra.terraform.reattached import reattach

from skerry_terraform.install import SOURCE
from skerry_terraform.provider.provider import SKERRY

INFRA = Path(__file__).parents[4] / "infra"
FOLDERS = sorted(
    folder.relative_to(INFRA)
    for kind in ("modules", "examples")
    for folder in (INFRA / "terraform" / kind).iterdir()
)


@pytest.fixture(scope="module")
def providers() -> Iterator[dict[str, str]]:
    """The environment in which terraform finds all providers in this process."""
    with contextlib.ExitStack() as stack:
        served = dict(stack.enter_context(reattach(SKERRY, SOURCE)).config)
        for path in sorted((INFRA / "terraform" / "schemas").glob("*.json")):
            address, provider = stand_in(path)
            served |= stack.enter_context(reattach(provider, address)).config
        yield {"TF_REATTACH_PROVIDERS": json.dumps(served)}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of `infra`, where terraform may leave its files."""
    return shutil.copytree(INFRA, tmp_path_factory.mktemp("copy") / "infra")


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_it_is_valid_and_passes_its_tests(
    folder: Path, copy: Path, providers: dict[str, str]
) -> None:
    terraform = Terraform(copy / folder, providers)
    terraform("init", "-backend=false")
    assert json.loads(terraform("validate", "-json"))["diagnostics"] == []
    [passed] = re.findall(r"Success! (\d+) passed, 0 failed\.", terraform("test"))
    assert int(passed) > 0


def test_they_are_formatted() -> None:
    Terraform(INFRA / "terraform", {})("fmt", "-check", "-diff", "-recursive")
