"""An edge with a queue that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.edge.scripted_region import MODEL, answer
from tests.edge.support import CHAT, Deployment, deployed

from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits


@pytest.fixture(scope="session")
def queueing_deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    limits = Limits(request_seconds=20.0, drain_seconds=1)
    folder = tmp_path_factory.mktemp("queueing")
    stores = Stores.in_folder(folder / "stores", edge="edge-1")
    with deployed(folder, limits, stores=stores, keeps_batches=True) as deployment:
        deployment.region.served = frozenset({MODEL, CHAT})
        yield deployment


@pytest.fixture
def edge(queueing_deployment: Deployment) -> Iterator[Deployment]:
    """Answers "Hello" until a test scripts something else; does nothing any more after it."""
    queueing_deployment.region.script = lambda submit: answer("Hello")
    queueing_deployment.region.streams.clear()
    yield queueing_deployment
    queueing_deployment.settle()
