"""A console, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from tests.edge.console.shell.shell import OWN
from tests.edge.scripted_region import answer
from tests.edge.support import Deployment, deployed

from skerry_edge.limits import Limits


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("console")
    with deployed(
        folder, Limits(), console="loopback", cors_origins=("https://page.example",)
    ) as edge:
        yield edge


@pytest.fixture
def browser(shown: Deployment) -> Iterator[httpx.Client]:
    """A browser on this machine, which has no token and no session."""
    shown.region.script = lambda submit: answer("Hello")
    base = f"http://127.0.0.1:{shown.port}"
    with httpx.Client(base_url=base, trust_env=False, headers=OWN, timeout=60.0) as client:
        yield client
