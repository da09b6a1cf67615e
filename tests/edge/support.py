"""A region and a vocabulary small enough to say by hand what must come out.

Tokens are bytes, so that an answer can be written as text; the region plays what a test scripts,
with the failures a real node has only rarely. Everything else of the edge is real.
"""

from __future__ import annotations

import asyncio
import codecs
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import httpx
import msgspec
from tests.edge.serving import serving
from tokenizers import Tokenizer, models

from skerry.errors import ModelNotFound
from skerry.wire import Message
from skerry_edge.api.app import create_app
from skerry_edge.families.recognition import family_of
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
from skerry_edge.text.model import TextModel, thought_of
from skerry_edge.text.prompts import content_text
from skerry_edge.text.token_cache import Borders
from skerry_regions.drivers.sqlite_queue import SqliteQueue
from skerry_regions.geo.region_report import RegionReport
from skerry_regions.models.catalog import Catalog, ModelFile, ModelSpec, Price
from skerry_regions.region.attempt_record import AttemptedStream, AttemptRecord
from skerry_regions.region.region_figures import SeenFleet
from skerry_regions.spec_types import ConsoleMode
from skerry_regions.wire.protocol import Done, Embed, PhaseUsage, Submit, Tokens
from skerry_regions.zones import GLOBAL

MODEL = "@cf/test/bytes"
ALIAS = "@cf/meta/another-name"
UNSERVED = "@cf/test/unserved"
CHAT = "@cf/test/chat"  # answers in the form of a chat completion, also on /ai/run
CONTEXT = 512
BOS, EOS = 256, 257
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


class ByteText:
    """The text side of a model whose tokens are bytes, with a BOS and an end-of-turn token."""

    stop_token_ids = (EOS,)
    vocab_size = 258
    build = "bytes"
    is_foreign = False
    borders = Borders(Tokenizer(models.BPE()))  # there are no control tokens to cut at

    # That of a model trained for tools.
    family = family_of(
        '{% if tools %}<tool_call>{"name": "f", "arguments": {}}{{ m.tool_calls }}{% endif %}'
    )

    flags: frozenset[str] = frozenset()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> str:
        named = ",".join(tool["function"]["name"] for tool in tools or ())
        turns = "".join(f"<{m.role}>{content_text(m)}\n" for m in messages) + "<assistant>"
        return f"<tools>{named}\n{turns}" if named else turns

    def render_prompt(self, prompt: str, *, raw: bool) -> str:
        return prompt if raw else self.render([Message("user", prompt)])

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        return [*([BOS] if add_special else []), *text.encode("utf-8", "surrogateescape")]

    def encode_part(self, part: str) -> list[int]:
        return self.encode(part)

    def close(self) -> None:
        """Nothing runs."""

    def check_length(self, num_tokens: int) -> None:
        """Nothing is too long to be looked at."""

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def ending(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids[-64:])).decode("utf-8", "replace")

    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer()


class ThinkingText(ByteText):
    """Of a model that thinks before it answers, unless its template is told otherwise."""

    family = family_of(
        '{% if tools %}<tool_call>{"name": "f", "arguments": {}}{% endif %}'
        "{% if enable_thinking %}<think>{% endif %}{{ messages[0].content.split('</think>') }}"
    )
    flags = frozenset(("enable_thinking", "style"))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        flags: Mapping[str, Any] | None = None,
    ) -> str:
        given = flags or {}
        turns = super().render(messages, tools=tools)
        thoughts = [thought for m in messages if (thought := thought_of(m))]
        thinks = "<think>\n" if given.get("enable_thinking", True) else "<think>\n\n</think>\n\n"
        return f"{given.get('style', '')}{'|'.join(thoughts)}{turns}{thinks}"


class ByteDetokenizer:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        return self._decoder.decode(bytes(each for each in token_ids if each < 256))

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


class Hold:
    """A step that never comes: the stream stays silent until it is aborted."""


@dataclass(frozen=True)
class Moved:
    """The stream goes on elsewhere."""

    explanation: str


Reason = Literal["stop", "length", "cancelled"]
Step = Sequence[int] | Tokens | Done | Hold | Moved | Exception


def answer(text: str | bytes, *, reason: Reason = "stop", per_step: int = 1) -> list[Step]:
    """Steps that say `text`, then end: with an end-of-turn token when the reason is "stop"."""
    ids = [
        *(text.encode() if isinstance(text, str) else text),
        *([EOS] if reason == "stop" else []),
    ]
    steps: list[Step] = [ids[i : i + per_step] for i in range(0, len(ids), per_step)]
    return [*steps, done(reason, len(ids))]


def done(reason: Reason, output_tokens: int, cached_tokens: int = 0) -> Done:
    usage = PhaseUsage(
        prompt_tokens=1, cached_tokens=cached_tokens, output_tokens=output_tokens,
        queue_seconds=0.0, prefill_seconds=0.0, decode_seconds=0.0,
    )  # fmt: skip
    return Done(stream=1, finish_reason=reason, usage=usage)


class ScriptedStream(AttemptedStream):
    def __init__(self, submit: Submit, steps: Sequence[Step], explanation: str = "") -> None:
        self.submit = submit
        self.explanation = explanation
        self.told: Sequence[AttemptRecord] = ()  # of its attempts
        self.aborted = threading.Event()
        self._steps = iter(steps)
        self._index = 0
        self._ended = False
        self._aborting = asyncio.Event()

    @property
    def attempts(self) -> Sequence[AttemptRecord]:
        return self.told

    def abort(self) -> None:
        self.aborted.set()
        self._aborting.set()

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> Tokens | Done:
        await asyncio.sleep(0)
        if self._ended:
            raise StopAsyncIteration
        if self._aborting.is_set():
            return self._end(done("cancelled", self._index))
        step = next(self._steps)
        match step:
            case Hold():
                await self._aborting.wait()
                return self._end(done("cancelled", self._index))
            case Moved():
                self.explanation = step.explanation
                return await anext(self)
            case Done():
                return self._end(step)
            case Exception():
                raise step
            case Tokens():
                return step
            case ids:
                return self._tokens(list(ids))

    def _end(self, event: Done) -> Done:
        self._ended = True
        return event

    def _tokens(self, ids: list[int]) -> Tokens:
        """With logprobs when asked: -0.5 for the token, and each lower rank 1.0 below."""
        index, self._index = self._index, self._index + len(ids)
        width = self.submit.sampling.logprobs
        logprobs = None
        if width is not None:
            logprobs = [
                (-0.5, [((each + rank) % 256, -0.5 - rank) for rank in range(width)])
                for each in ids
            ]
        return Tokens(stream=1, index=index, token_ids=ids, logprobs=logprobs)


class ScriptedRegion:
    """`RegionClient` that plays `script(submit)`; an exception from it is a refused submission."""

    def __init__(self) -> None:
        self.script: Callable[[Submit], Sequence[Step]] = lambda submit: answer("Hello")
        self.streams: list[ScriptedStream] = []
        self.served = frozenset({MODEL})
        self.explanation = ""  # of every stream
        self.attempts: list[AttemptRecord] = []  # of every stream
        self.closed = False

    @property
    def submits(self) -> list[Submit]:
        return [stream.submit for stream in self.streams]

    async def generate(self, submit: Submit) -> ScriptedStream:
        stream = ScriptedStream(submit, self.script(submit), self.explanation)
        stream.told = self.attempts
        self.streams.append(stream)
        return stream

    async def embed(self, embed: Embed) -> bytes:
        raise ModelNotFound(f"no node embeds by {embed.model}")

    def models(self) -> frozenset[str]:
        return self.served

    async def close(self) -> None:
        self.closed = True


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
