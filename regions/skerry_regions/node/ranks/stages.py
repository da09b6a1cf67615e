"""Ranks on other machines: how a node, or a rank, has the next one started there, and what runs.

    node                                    where stages are served
      │ ── proof ─────────────────────────────▶ │   of a machine that runs nodes
      │ ◀── why not, or nothing ─────────────── │   and a process is started, with the connection
      │ ── proof ─────────────────────────────▶ rank   of the same over again
      │ ── order ─────────────────────────────▶ rank   and from there on as between processes

TLS does not move from one process to another, and a process costs a second to start: so strangers
are refused by the one that listens, and the rank proves itself anew over the same connection.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from pathlib import Path
from typing import NoReturn

from skerry.runners import RunnerName
from skerry_core.config import ConfigError
from skerry_core.ranks import RankLost, Ranks
from skerry_core.runner import Progress, RunnerSetup
from skerry_regions.address import Address
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.store import ModelStore
from skerry_regions.node.ranks.channel import SILENCE_SECONDS, SocketChannel
from skerry_regions.node.ranks.child import run
from skerry_regions.node.ranks.children import LossWatch
from skerry_regions.node.ranks.order import OwnFiles, RankOrder, StoredModel
from skerry_regions.node.ranks.stream import RankStream, prove
from skerry_regions.wire.link_auth import HANDSHAKE_SECONDS, LinkCredentials
from skerry_regions.wire.link_certificates import LOOK_SECONDS, LinkCertificates
from skerry_regions.wire.link_key import LinkRefused

CONNECT_SECONDS = 5.0
START_SECONDS = 60.0  # that a process may take to prove itself
MAX_ANSWER = 1024  # bytes of why a rank is not served
_LENGTH = struct.Struct("<I")


class StageRanks(LossWatch):
    """`Ranks` of which each after the first is served by a machine of its own."""

    def __init__(
        self,
        runner: RunnerName,
        form: str = "",
        *,
        model: StoredModel,
        credentials: LinkCredentials,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        super().__init__(runner, form, silence_seconds=silence_seconds)
        self._model = model
        self._credentials = credentials

    def start(self, setup: RunnerSetup) -> SocketChannel:
        """Start a rank; see `Ranks`. Returns once its process has proven itself."""
        at = self._model.stages[setup.rank - 1]
        name = f"rank {setup.rank} at {at}"
        try:
            stream = _open(stage_address(at), self._credentials)
        except OSError as error:
            raise RankLost(f"{name} does not start: {error}") from None
        return self._order(setup, stream, name, self._ended, self._model)


def stage_address(written: str) -> Address:
    """Return where stages are served of HOST:PORT. Raises AddressError."""
    return Address.parse(f"tcp:{written}")


def _open(at: Address, credentials: LinkCredentials) -> RankStream:
    """Have a process started; return the way to it. Raises OSError."""
    end = credentials.end(at, "ranks", listens=False)
    connection = socket.create_connection((at.host, at.port), CONNECT_SECONDS)
    try:
        listener = prove(connection, end, HANDSHAKE_SECONDS)
        connection.settimeout(HANDSHAKE_SECONDS)
        if why := _read_answer(listener):
            raise LinkRefused(why)
        if listener is not connection and listener.recv_into(memoryview(bytearray(1))):
            raise LinkRefused("more came than an answer")  # its end, before the rank's first byte
        return prove(connection, credentials.end(at, "ranks", listens=False), START_SECONDS)
    except BaseException:
        connection.close()
        raise


def answer(why: str = "") -> bytes:
    """Return what a caller is sent: why it is not served; nothing where it is."""
    text = why.encode()[:MAX_ANSWER]
    return _LENGTH.pack(len(text)) + text


def _read_answer(stream: RankStream) -> str:
    """Raises OSError."""
    (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
    if length > MAX_ANSWER:
        raise LinkRefused("what came is no answer")
    return str(_exactly(stream, length), "utf-8", "replace")


def _exactly(stream: RankStream, count: int) -> bytearray:
    """Raises OSError, also at the end."""
    received, done = bytearray(count), 0
    while done < count:
        number = stream.recv_into(memoryview(received)[done:])
        if not number:
            raise LinkRefused("the other end refused: its log says why")
        done += number
    return received


# --- in the process that is started ------------------------------------------------------------


def serve_stage(
    descriptor: int, credentials: LinkCredentials, *, home: Path, threads: int
) -> NoReturn:
    """Run as the rank that the other end of a connection orders, and end the process with it.

    Raises OSError where the other end does not prove itself.
    """
    connection = socket.socket(fileno=descriptor)
    host, port, *_ = connection.getsockname()
    at = Address(host=host, port=port)
    stream = prove(connection, credentials.end(at, "ranks", listens=True), HANDSHAKE_SECONDS)
    if credentials.certificates is not None:
        follow = threading.Thread(target=_follow, args=(credentials.certificates,), daemon=True)
        follow.start()

    def prepare(order: RankOrder, progress: Progress) -> tuple[OwnFiles, Ranks]:
        return _stored(order, home, threads, progress), StageRanks(
            order.runner, model=_model_of(order), credentials=credentials
        )

    run(stream, prepare, at=f"{at}".removeprefix("tcp:"))


def _model_of(order: RankOrder) -> StoredModel:
    """Raises ConfigError."""
    if not isinstance(order.of, StoredModel):
        raise ConfigError("a rank for another machine has files of its own machine alone")
    if len(order.of.stages) != order.pipeline - 1 or order.rank >= order.pipeline:
        raise ConfigError(f"{len(order.of.stages)} stages for rank {order.rank}")
    return order.of


def _stored(order: RankOrder, home: Path, threads: int, progress: Progress) -> OwnFiles:
    """Find what an order names in this machine's own store. Raises ConfigError, SkerryError,
    CatalogError and ModelProblem."""
    model = _model_of(order)
    files = ModelStore(home).open(Catalog.load(home).resolve(model.id), progress)
    if files.weights_digest != model.weights_digest:
        raise ConfigError(
            f"{model.id} has other weights here than at the node: "
            f"have both catalogs say the same, and run `skerry models pull {model.id}`"
        )
    return OwnFiles(str(files.weights), str(home / "cache"), threads)


def _follow(certificates: LinkCertificates) -> None:
    """Take in files that change: a machine that is revoked loses its rank."""
    while True:
        time.sleep(LOOK_SECONDS)
        certificates.look()
