"""A deployed edge that the tests of a module share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.edge.loop_meter import MAX_SECONDS, METER
from tests.edge.scripted_region import answer
from tests.edge.support import Deployment, deployed

from skerry_edge.http import server
from skerry_edge.http.connection import GuardedProtocol
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits

TIMED_PROTOCOL = METER.timing(GuardedProtocol)


@pytest.fixture(autouse=True)
def _no_request_holds_the_loop(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """No callback of an edge that listens takes more processor time than `MAX_SECONDS`, unless its
    test is `unmeasured`."""
    if request.node.get_closest_marker("unmeasured") is not None:
        yield
        return
    monkeypatch.setattr(server, "GuardedProtocol", TIMED_PROTOCOL)
    METER.read()
    yield
    worst, what = METER.read()
    assert worst <= MAX_SECONDS, f"{what} held the event loop for {worst * 1e3:.1f} ms"


@pytest.fixture(scope="session")
def shared_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    limits = Limits(keep_alive_seconds=0.1, request_seconds=60.0, max_requests=8, drain_seconds=1)
    folder: Path = tmp_path_factory.mktemp("edge")
    stores = Stores.in_folder(folder / "stores", edge="edge-1")
    with deployed(folder, limits, keeps_batches=True, stores=stores) as deployment:
        yield deployment


@pytest.fixture
def edge(shared_deployment: Deployment) -> Iterator[Deployment]:
    """Answers "Hello" until a test scripts something else; does nothing any more after it."""
    shared_deployment.region.script = lambda submit: answer("Hello")
    shared_deployment.region.explanation = ""
    shared_deployment.region.attempts = []
    shared_deployment.region.streams.clear()
    yield shared_deployment
    shared_deployment.settle()
