"""Stores over logs on a real NATS server, whose connection lives on a loop in a thread."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from nats.aio.client import Client
from tests.regions.drivers.faults import FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry_regions.control.desired.logged_store import PICTURE_EVERY, LoggedStore
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.transaction_log import TransactionLog
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.specs import MIB
from skerry_regions.drivers.jetstream.tables import CONTROL, PICTURES

T = TypeVar("T")
Opener = Callable[[Path, Callable[[], float]], Store]
"""Opens the store of a path by a clock."""


class Logs:
    """One log in a zone of its own, and the control planes that share it."""

    def __init__(self, cluster: NatsCluster) -> None:
        self.cluster = cluster
        self.zone = secrets.token_hex(4)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._connections: list[JetStream] = []

    def connection(self, plan: FaultPlan | None = None) -> JetStream:
        made = JetStream(self.cluster.state, make_client=plan.client if plan else Client)
        small = [(replace(spec, max_bytes=32 * MIB), self.zone) for spec in (CONTROL, PICTURES)]
        self.wait(made.open(*small))
        self._connections.append(made)
        return made

    def log(self, plan: FaultPlan | None = None) -> TransactionLog:
        """Another connection's view of it."""
        return TransactionLog(self.connection(plan), self.loop, self.zone)

    def open(
        self,
        path: Path,
        clock: Callable[[], float],
        *,
        plan: FaultPlan | None = None,
        picture_every: int = PICTURE_EVERY,
    ) -> LoggedStore:
        """Open the store of a control plane that follows."""
        return LoggedStore(path, self.log(plan), clock=clock, picture_every=picture_every)

    def lead(self, path: Path, clock: Callable[[], float]) -> LoggedStore:
        """Open the store of a control plane that leads."""
        store = self.open(path, clock)
        store.next_term(0)
        return store

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def close(self) -> None:
        for each in self._connections:
            self.wait(each.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


def in_file(path: Path, clock: Callable[[], float]) -> Store:
    return Store(path, clock=clock)
