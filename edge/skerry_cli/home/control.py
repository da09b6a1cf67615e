"""`skerry status` queries the running platform: one JSON document over a Unix socket in its home.

The socket is in a folder that only its owner may enter, answers every connection with the status,
and takes no commands: stopping is a signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec
from msgspec import Struct

from skerry_cli.home.errors import CommandFailed
from skerry_cli.home.platform_client import ControlView
from skerry_regions.models.problems import LeftOut

MAX_STATUS_BYTES = 4 << 20
ANSWER_SECONDS = 5.0


class EdgeStatus(Struct, frozen=True):
    id: str
    pid: int
    url: str
    region: str


class EngineFigures(Struct, frozen=True, kw_only=True):
    """Figures of one engine, as its node reports them."""

    running: int = 0
    waiting: int = 0
    blocks: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    cache_hit_tokens: int = 0
    busy_seconds: float = 0.0
    steps: int = 0
    prompt_tokens: int = 0  # these four explain `busy_seconds`
    attended_pairs: float = 0.0
    stream_steps: int = 0
    context_steps: int = 0
    accepted_tokens: int = 0  # of drafts


class NodeStatus(Struct, frozen=True, omit_defaults=True):
    """One model of one node."""

    id: str
    pid: int
    role: str
    region: str
    model: str
    state: str
    streams: int
    control: str = ""  # address of its control API, where it has one
    engine: EngineFigures | None = None  # of a node without one


class Status(Struct, frozen=True, omit_defaults=True):
    """What `skerry status --json` prints, without the notes."""

    url: str
    edges: list[EdgeStatus]
    nodes: list[NodeStatus]
    notes: list[str] = []  # sentences about what goes wrong, for people
    left_out: list[LeftOut] = []  # models that the start could not open
    control: ControlView | None = None  # what the control plane runs
    includes_control: bool = False  # which is among these edges and nodes


class NoAnswer(CommandFailed):
    """The platform's process does not answer: the `problem`, and what to do about it."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}. `skerry down` stops it.")
        self.problem = problem


@contextlib.asynccontextmanager
async def answer_status(path: str, status: Callable[[], Awaitable[Status]]) -> AsyncGenerator[None]:
    """Serve `status()` at `path` until the block ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(msgspec.json.encode(await status()))
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(answer, path)
    try:
        os.chmod(path, 0o600)
        yield
    finally:
        server.close()


def ask_status(path: str) -> Status:
    """Return the status of the platform that listens at `path`. Raises `NoAnswer`."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(path)
            with connection.makefile("rb") as file:
                return msgspec.json.decode(file.read(MAX_STATUS_BYTES), type=Status)
    except (OSError, msgspec.DecodeError) as error:
        raise NoAnswer(f"Skerry's process does not answer at {path}: {error}") from None
