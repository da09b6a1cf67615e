"""A real control plane behind a proxy that can fail, and real Terraform with the provider here."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import Skerry
from tests.e2e.control.control_client import ControlPlane
from tests.infra.terraform.command import (
    FaultyProxy,
    Terraform,
    attached,
    provider_block,
    terraform_binary,
)
from tests.infra.terraform.configurations import know_lost_model

from skerry_terraform.provider.provider import SKERRY

NAMES = (f"r{i}" for i in itertools.count())


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """For all tests that have regions of their own in it."""
    terraform_binary()
    home = tmp_path_factory.mktemp("control") / "home"
    home.mkdir(mode=0o700)
    know_lost_model(home)
    control = ControlPlane(Skerry(home))
    yield control
    control.stop()


@pytest.fixture
def proxy(control: ControlPlane) -> FaultyProxy:
    return FaultyProxy(str(control.http.base_url).removesuffix("/control/v1/"))


@pytest.fixture
def terraform(tmp_path: Path, control: ControlPlane, proxy: FaultyProxy) -> Iterator[Terraform]:
    with proxy.running() as url:
        block = provider_block(url, control.token, max_retries=4)
        with attached(tmp_path / "work", SKERRY, block) as terraform:
            yield terraform


@pytest.fixture
def region() -> str:
    """A name that no other test has."""
    return next(NAMES)
