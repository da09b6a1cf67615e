"""Homes that share their tokens on NATS servers, each as a process of its own would have it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from nats.aio.client import Client
from tests.regions.drivers.faults import FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry_edge.gate.tokens import TokenStore
from skerry_edge.shared.nats_settings import NatsSettings
from skerry_edge.shared.nats_tokens import NatsTokenRecords
from skerry_regions.drivers.jetstream.specs import MIB
from skerry_regions.drivers.jetstream.tables import SETTINGS

SMALL = replace(SETTINGS, max_bytes=8 * MIB)
PATIENCE = 60.0  # seconds


class SharedTokens:
    """Homes of one platform, with a stream of their own."""

    def __init__(self, cluster: NatsCluster, folder: Path, clock: Callable[[], float]) -> None:
        self.zone = secrets.token_hex(4)
        self.settings: list[NatsSettings] = []
        self._cluster = cluster
        self._folder = folder
        self._clock = clock
        self._stack = ExitStack()

    def path(self, name: str) -> Path:
        return self._folder / self.zone / name / "tokens.json"

    def join(self, name: str, plan: FaultPlan | None = None) -> TokenStore:
        """The tokens of a home, which follows the others' until the end."""
        make = Client if plan is None else plan.client
        settings = NatsSettings(
            self._cluster.state,
            lambda picture: following.follow(picture),
            declared=(SMALL, self.zone),
            make_client=make,
        )
        following = NatsTokenRecords(self.path(name), settings)
        self._stack.callback(settings.close)
        self.settings.append(settings)
        settings.open()
        return TokenStore(NatsTokenRecords(self.path(name), settings), clock=self._clock)

    def close(self) -> None:
        self._stack.close()


@contextmanager
def shared_tokens(
    cluster: NatsCluster, folder: Path, clock: Callable[[], float] = time.time
) -> Generator[SharedTokens]:
    homes = SharedTokens(cluster, folder, clock)
    try:
        yield homes
    finally:
        homes.close()


def soon(condition: Callable[[], bool], seconds: float = PATIENCE) -> float:
    """Wait until it is so; seconds that it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it never happened"
        time.sleep(0.01)
    return time.monotonic() - began
