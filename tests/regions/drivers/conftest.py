"""A server of NATS for the tests of a file, and members of a registry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.regions.drivers.nats_server import NatsServer

from skerry_regions.registry import Member


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    yield server
    server.stop()


def member(id: str, *, incarnation: int = 1, streams: int = 0) -> Member:
    return Member(id=id, kind="node", region="r", incarnation=incarnation, streams=streams)
