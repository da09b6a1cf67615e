"""A NATS client of which one request meets a fault: for a run of a case at each of its requests."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any, Literal

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import TimeoutError as NatsTimeout
from tests.regions.drivers.nats_server import NatsCluster

Fault = Literal["answer lost", "connection cut", "leader stopped"]
FAULTS: tuple[Fault, ...] = ("answer lost", "connection cut", "leader stopped")
FAULTS_MOSTLY_SLOW = [  # of suites with many requests: those that wait are run with the slow ones
    pytest.param(fault, marks=[] if fault == "answer lost" else [pytest.mark.slow])
    for fault in FAULTS
]
FROZEN_SECONDS = 0.4
ANSWER_SECONDS = 0.3  # that these clients wait, so that a fault takes less


class FaultPlan:
    """Which request of JetStream is hit, counted from when it is `armed`, over all clients."""

    def __init__(self, fault: Fault, at: int, cluster: NatsCluster) -> None:
        self.fault = fault
        self.at = at
        self.cluster = cluster
        self.num_requests = 0
        self.is_armed = False

    @property
    def was_hit(self) -> bool:
        return self.num_requests > self.at

    def client(self) -> Client:
        return FaultyClient(self)

    def counts(self) -> bool:
        """Count a request; whether it is the one."""
        if not self.is_armed:
            return False
        self.num_requests += 1
        return self.num_requests == self.at + 1


class FaultyClient(Client):
    def __init__(self, plan: FaultPlan) -> None:
        super().__init__()
        self._plan = plan

    async def request(self, *args: Any, **options: Any) -> Msg:
        options["timeout"] = ANSWER_SECONDS
        if not self._plan.counts():
            return await super().request(*args, **options)
        match self._plan.fault:
            case "answer lost":
                await super().request(*args, **options)
                raise NatsTimeout
            case "connection cut":
                sent = asyncio.ensure_future(super().request(*args, **options))
                await asyncio.sleep(0)
                await self._flush_pending()
                self._transport.close()  # type: ignore[union-attr]
                return await sent
            case _:
                threading.Timer(FROZEN_SECONDS, freeze(self._plan.cluster)).start()
                return await super().request(*args, **options)


def freeze(cluster: NatsCluster) -> Callable[[], None]:
    """Stop all servers; returns what has them go on."""
    for name in cluster.names:
        cluster.signal(name, signal.SIGSTOP)

    def thaw() -> None:
        for name in cluster.names:
            cluster.signal(name, signal.SIGCONT)

    return thaw
