"""The store of a control plane by itself, and that of one of several: what holds of both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.regions.control.log.logs import Logs, Opener, in_file
from tests.regions.drivers.nats_server import NatsCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"), size=1)
    yield cluster
    cluster.stop()


@pytest.fixture
def logs(cluster: NatsCluster) -> Iterator[Logs]:
    logs = Logs(cluster)
    yield logs
    logs.close()


@pytest.fixture(params=["file", "log"])
def opener(request: pytest.FixtureRequest) -> Opener:
    """Opens a store that may write."""
    if request.param == "file":
        return in_file
    logs: Logs = request.getfixturevalue("logs")
    return logs.lead
