"""Batch queues on NATS servers, whose connections live on a loop in a thread."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from nats.aio.client import Client
from tests.regions.drivers.faults import FaultPlan
from tests.regions.drivers.nats_server import NatsCluster
from tests.regions.drivers.queues import LIMITS

from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.queue.nats_queue import NatsQueue
from skerry_regions.drivers.jetstream.specs import MIB
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import BATCHES
from skerry_regions.queue import QueueLimits

SPEC = replace(BATCHES, max_bytes=64 * MIB)
T = TypeVar("T")


class NatsQueues:
    """Edges' views of one queue, in a zone of its own, with a clock that a test moves."""

    def __init__(self, cluster: NatsCluster) -> None:
        self.cluster = cluster
        self.zone = secrets.token_hex(4)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._connections: list[JetStream] = []
        self.now = 1000.0

    def open(self, plan: FaultPlan | None = None, limits: QueueLimits = LIMITS) -> NatsQueue:
        clock = lambda: self.now  # noqa: E731
        stream = self.wait(self._stream(plan))
        return NatsQueue(stream, self.loop, limits, clock=clock, wall_clock=clock)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def stored(self) -> list[str]:
        """Keys of all that the stream has."""
        return self.wait(KeyedStream(self._connections[0], SPEC, self.zone).keys())

    def close(self) -> None:
        for each in self._connections:
            self.wait(each.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _stream(self, plan: FaultPlan | None) -> KeyedStream:
        jetstream = JetStream(
            self.cluster.state, make_client=Client if plan is None else plan.client
        )
        await jetstream.open((SPEC, self.zone))
        assert jetstream.problem == ""
        self._connections.append(jetstream)
        return KeyedStream(jetstream, SPEC, self.zone)
