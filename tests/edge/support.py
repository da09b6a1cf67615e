"""An edge that is deployed over a scripted region, and what tests ask of it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
from tests.edge.byte_text import CONTEXT, ByteText, ThinkingText
from tests.edge.scripted_region import MODEL, ScriptedRegion
from tests.edge.serving import serving

from skerry_edge.api.app import create_app
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.ledger.batches import Batches
from skerry_edge.ledger.file_store import FileStore
from skerry_edge.ledger.responses_store import ResponseStore
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits
from skerry_edge.money.spending import Spending
from skerry_edge.telemetry.trace_store import TraceStore
from skerry_edge.text.desk import Desk
from skerry_edge.text.model import TextModel
from skerry_regions.drivers.sqlite_queue import SqliteQueue
from skerry_regions.geo.region_report import RegionReport
from skerry_regions.models.catalog import Catalog, ModelFile, ModelSpec, Price
from skerry_regions.region.region_figures import SeenFleet
from skerry_regions.spec_types import ConsoleMode
from skerry_regions.zones import GLOBAL

ALIAS = "@cf/meta/another-name"
UNSERVED = "@cf/test/unserved"
CHAT = "@cf/test/chat"  # answers in the form of a chat completion, also on /ai/run

EDGE = "edge-1"
ACCOUNT = "0123456789abcdef0123456789abcdef"
PATIENCE = 60.0  # seconds, for what another thread is about to do


def eventually(condition: Callable[[], Any]) -> Any:
    """Wait until another thread has made it true; what it was then."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)
    return found


def spent(spending: Spending, payer: str) -> tuple[float, float]:
    """What a payer has spent, for a thread that may have an event loop of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(spending.spent(payer))).result()


def specs() -> list[ModelSpec]:
    file = ModelFile(name="model.gguf", size=1, sha256="0" * 64)
    spec = ModelSpec(
        id=MODEL,
        source="file:/srv/models",
        files=(file,),
        context_window=CONTEXT,
        aliases=(ALIAS,),
        description="Bytes.",
        price=Price(prompt=0.5, cached=0.1, output=2.0),
    )
    chat = msgspec.structs.replace(spec, id=CHAT, aliases=(), answer="chat", default_max_tokens=300)
    return [spec, msgspec.structs.replace(spec, id=UNSERVED, aliases=()), chat]


@dataclass(slots=True)
class Deployment:
    """An edge that listens, and how to call it."""

    edge: Edge
    region: ScriptedRegion
    port: int
    token: str
    client: httpx.Client

    @property
    def run_path(self) -> str:
        return f"/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}"

    @property
    def chat_path(self) -> str:
        return f"/client/v4/accounts/{ACCOUNT}/ai/v1/chat/completions"

    @property
    def complete_path(self) -> str:
        return f"/client/v4/accounts/{ACCOUNT}/ai/v1/completions"

    def complete(self, **body: Any) -> httpx.Response:
        return self.client.post(self.complete_path, json={"model": MODEL, "prompt": "x", **body})

    def run(self, **body: Any) -> httpx.Response:
        return self.client.post(self.run_path, json=body)

    def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "hi"}]
        return self.client.post(self.chat_path, json={"model": MODEL, "messages": messages, **body})

    def settle(self) -> None:
        """Wait until nothing that was asked, or queued, is still being done."""
        batches = self.edge.batches
        if batches is not None:
            eventually(lambda: not batches.queue.has_work())
        eventually(lambda: self.edge.metrics.running.value == 0)


@contextmanager
def asking(client: httpx.Client, path: str, body: Any) -> Generator[None]:
    """A client that has asked, and goes away at the block's end without reading an answer."""
    request = client.build_request("POST", path, json=body)
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {it}" for name, it in request.headers.items())]
    address = request.url.host, request.url.port
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + request.content)
        yield


@contextmanager
def deployed(
    folder: Path,
    limits: Limits,
    *,
    cors_origins: tuple[str, ...] = (),
    stores_responses: bool = True,
    keeps_batches: bool = False,
    stores: Stores | None = None,
    admission: Admission | None = None,
    zone: str = GLOBAL,
    ailment: Callable[[], str | None] = lambda: None,
    log_prompts: bool = False,
    report: Callable[[], RegionReport] = RegionReport,
    logins: Logins | None = None,
    hosts: frozenset[str] = frozenset(),
    at_once_seconds: float = PATIENCE,
    console: ConsoleMode = "off",
    fleet: Callable[[], SeenFleet] = SeenFleet,
    platform: str = "",
    control: Callable[[], str] = str,
    thinks: bool = False,
) -> Generator[Deployment]:
    """A real edge on loopback, in front of a `ScriptedRegion`. `at_once_seconds` is what may be
    worked on for requests that are refused; models that `think` have room for 4,096 tokens."""
    tokens = TokenStore(folder / "tokens.json")
    token, _ = tokens.create(account_id=ACCOUNT, role="developer", now=0)
    region = ScriptedRegion()
    text = cast(TextModel, ThinkingText() if thinks else ByteText())
    wide = {"context_window": 4096} if thinks else {}
    edge = Edge(
        catalog=Catalog(msgspec.structs.replace(spec, **wide) for spec in specs()),
        texts={MODEL: text, CHAT: text},
        region=region,
        residency=zone,
        tokens=tokens,
        logins=logins,
        hosts=hosts,
        secret=b"s" * 32,
        limits=limits,
        desk=Desk(at_once_seconds=at_once_seconds),
        admission=Admission(max_requests=limits.max_requests) if admission is None else admission,
        responses=ResponseStore(folder / "responses.db") if stores_responses else None,
        batches=_batches(folder) if keeps_batches else None,
        stores=stores or Stores(),
        cors_origins=cors_origins,
        ailment=ailment,
        log_prompts=log_prompts,
        report=report,
        console=console,
        fleet=fleet,
        platform=platform,
        control=control,
        traces=TraceStore(EDGE),
    )
    with serving(create_app(edge), limits) as port:
        base, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {token}"}
        with httpx.Client(
            base_url=base, headers=headers, timeout=PATIENCE, trust_env=False
        ) as client:
            yield Deployment(edge, region, port, token, client)
    assert region.closed


def _batches(folder: Path) -> Batches:
    return Batches(queue=SqliteQueue(folder / "queue.db"), files=FileStore(folder / "files.db"))


def events(body: str) -> list[Any]:
    """Data of the events of a stream; `[DONE]` stays text. Comments are left out."""
    out: list[Any] = []
    for block in body.split("\n\n"):
        for line in block.splitlines():
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                out.append(data if data == "[DONE]" else msgspec.json.decode(data))
    return out
