"""A browser, and an edge for it that listens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.edge.console.browsing import Pages
from tests.edge.scripted_region import answer
from tests.edge.support import Deployment, deployed
from tests.tools import program

from skerry_edge.limits import Limits


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    library: Any = pytest.importorskip("playwright.sync_api")
    path = program("chromium", "chromium")
    with library.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def browsed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("browser")
    with deployed(folder, Limits(max_requests=64), console="loopback") as edge:
        yield edge


@pytest.fixture
def at(browsed: Deployment) -> Deployment:
    """Answers "Hello" until a test scripts something else."""
    browsed.region.script = lambda submit: answer("Hello")
    browsed.region.explanation = ""
    browsed.region.attempts = []
    browsed.region.streams.clear()
    return browsed


@pytest.fixture
def pages(chromium: Any, at: Deployment) -> Iterator[Pages]:
    """Afterwards: no error in a console, nothing refused by the policy, no request outside."""
    made = Pages(chromium, at)
    yield made
    made.close()
    assert made.faults == []
