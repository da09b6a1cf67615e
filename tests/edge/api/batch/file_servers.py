"""Where files of tenants are kept: in a file, or on servers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import threading
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any, TypeVar

from nats.aio.client import Client
from tests.clock import Clock
from tests.regions.drivers.faults import FaultPlan
from tests.regions.drivers.nats_server import NatsCluster

from skerry_edge.ledger.file_store import FileStore
from skerry_edge.ledger.files import PIECE_BYTES, FileBounds, Files, StoredFile
from skerry_edge.shared.nats_files import NatsFiles
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.specs import MIB
from skerry_regions.drivers.jetstream.stream import KeyedStream
from skerry_regions.drivers.jetstream.tables import FILES

T = TypeVar("T")

BOUNDS = FileBounds(file_bytes=3 * PIECE_BYTES, tenant_bytes=5 * PIECE_BYTES, tenant_files=4)


class Servers:
    """NATS servers, and files on them whose client lives on a loop of a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.cluster = NatsCluster(folder, size=1)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    @contextlib.contextmanager
    def opened(
        self, clock: Clock, zone: str = "", plan: FaultPlan | None = None
    ) -> Generator[NatsFiles]:
        zone, spec = zone or secrets.token_hex(4), dataclasses.replace(FILES, max_bytes=64 * MIB)
        make = Client if plan is None else plan.client
        jetstream = JetStream(self.cluster.state, make_client=make)
        self.run(jetstream.open((spec, zone)))
        stream = KeyedStream(jetstream, spec, zone)
        yield NatsFiles(stream, self.loop, ttl_seconds=100.0, bounds=BOUNDS, wall_clock=clock)
        self.run(jetstream.close())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
        self.cluster.stop()


def num_pieces(files: Files) -> int:
    """How many there are in the store."""
    if isinstance(files, NatsFiles):
        return len(files.wait(files.stream.keys("f.>")))
    assert isinstance(files, FileStore)
    with files.file.reading() as database:
        (number,) = database.execute("SELECT COUNT(*) FROM pieces").fetchone()
    return int(number)


def put(files: Files, id: str, content: bytes = b"x", *, tenant: str = "t") -> None:
    files.put(tenant, id, f"{id}.jsonl", "batch", [content])


def of(files: Files, id: str) -> StoredFile:
    file = files.get("t", id)
    assert file is not None
    return file


def content(files: Files, id: str, *, tenant: str = "t") -> bytes:
    pieces: list[bytes] = []
    file = files.get(tenant, id)
    assert file is not None
    while (piece := files.piece(tenant, file, len(pieces))) is not None:
        pieces.append(piece)
    return b"".join(pieces)
