"""Machines are requested over a webhook: when, what it says, its signature, and its retries."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.clock import Clock
from tests.regions.control.hosts.hosted import OFFERS, Machine
from tests.regions.control.joining import Platform, platform
from tests.regions.control.support import MODEL, new

from skerry_regions.control.machines import webhook
from skerry_regions.control.machines.hosts import HOST_SECONDS
from skerry_regions.control.machines.webhook import MachineWebhook, WebhookError, WebhookOptions
from skerry_regions.control.planning.machine_needs import LackingNodes, MachineNeeds
from skerry_regions.process.launch_folder import Slot

SECRET = bytes(range(32))
LACKS = MachineNeeds(lacking=(LackingNodes(pool="fra-many", nodes=2, cpus=1, memory=0, gpus=0),))
POOL = "fra-many"


class Receiver:
    """An operator's stand-in: it keeps what it is sent, and answers as it is told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.received: list[tuple[dict[str, str], bytes]] = []

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.received]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            made.received.append(({k.lower(): v for k, v in self.headers.items()}, body))
            status, headers = made.answers.pop(0) if made.answers else (204, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Receiver(f"http://127.0.0.1:{server.server_address[1]}/machines")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "webhook-secret"
    file.write_text(f"whsec_{base64.b64encode(SECRET).decode()}\n")
    return file


class Sender:
    """A webhook whose needs and clock a test sets."""

    def __init__(self, url: str, secret: Path) -> None:
        self.needs: dict[str, MachineNeeds] = {}
        self.clock = Clock(1_700_000_000.0)
        self.webhook = MachineWebhook(
            WebhookOptions(url=url, secret_file=secret), lambda idle: self.needs,
            clock=self.clock, wall=self.clock, rng=Random(1),
        )  # fmt: skip

    async def after(self, seconds: float) -> None:
        """Look as long, second by second; what is sent arrives meanwhile."""
        for _ in range(int(seconds)):
            self.webhook.look()
            await asyncio.gather(*self.webhook._sending.values())
            self.clock.now += 1


@pytest.fixture
def sender(receiver: Receiver, secret: Path, monkeypatch: pytest.MonkeyPatch) -> Sender:
    monkeypatch.setattr(webhook.Backoff, "failed", lambda *_: 0.0)
    return Sender(receiver.url, secret)


@pytest.mark.anyio
async def test_a_message_is_sent_once_it_has_settled_and_signed(
    sender: Sender, receiver: Receiver
) -> None:
    sender.needs = {"fra": LACKS}
    await sender.after(webhook.SETTLE_SECONDS)
    assert receiver.received == []
    await sender.after(1)
    [(headers, body)] = receiver.received
    assert json.loads(body) == {
        "type": "machines.needed",
        "timestamp": "2023-11-14T22:13:25.000Z",
        "data": {
            "region": "fra",
            "lacking": [{"pool": POOL, "nodes": 2, "cpus": 1, "memory": 0, "gpus": 0}],
            "idle": [],
        },
    }
    id, at = headers["webhook-id"], headers["webhook-timestamp"]
    assert at == "1700000005"
    signed = hmac.new(SECRET, f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(signed).decode()


@pytest.mark.anyio
async def test_what_stays_so_is_repeated_and_what_is_over_is_said(
    sender: Sender, receiver: Receiver
) -> None:
    sender.needs = {"fra": LACKS, "iad": MachineNeeds(idle=("iad-host-1",))}
    await sender.after(webhook.SETTLE_SECONDS + 1)
    assert sorted(each["data"]["region"] for each in receiver.messages) == ["fra", "iad"]
    sender.needs = {"iad": MachineNeeds(idle=("iad-host-1",))}
    await sender.after(2)
    sender.needs["fra"] = LACKS  # for a moment only it was not
    await sender.after(webhook.SETTLE_SECONDS + 1)
    assert len(receiver.received) == 2
    del sender.needs["fra"]
    await sender.after(webhook.SETTLE_SECONDS + 1)
    assert receiver.messages[2]["data"] == {"region": "fra", "lacking": [], "idle": []}
    await sender.after(webhook.REPEAT_SECONDS)
    [again] = receiver.messages[3:]
    assert again["data"] == {"region": "iad", "lacking": [], "idle": ["iad-host-1"]}


@pytest.mark.anyio
async def test_a_retry_is_the_same_message(sender: Sender, receiver: Receiver) -> None:
    receiver.answers = [(500, {}), (429, {"retry-after": "0"}), (302, {"location": "/elsewhere"})]
    sender.needs = {"fra": LACKS}
    await sender.after(webhook.SETTLE_SECONDS + 1)
    assert len(receiver.received) == 3, "a redirect is not followed, and not retried"
    assert len({headers["webhook-id"] for headers, _ in receiver.received}) == 1
    assert len({body for _, body in receiver.received}) == 1
    await sender.after(webhook.REPEAT_SECONDS)
    assert len(receiver.received) == 4, "then it is another message"


@pytest.mark.anyio
async def test_retries_are_bounded_and_end_when_something_else_is_so(
    sender: Sender, receiver: Receiver
) -> None:
    receiver.answers = [(503, {})] * 100
    sender.needs = {"fra": LACKS}
    await sender.after(webhook.SETTLE_SECONDS + 30)
    assert len(receiver.received) == webhook.ATTEMPTS


@pytest.mark.anyio
async def test_a_receiver_that_is_away_stops_nothing(secret: Path) -> None:
    sender = Sender("http://127.0.0.1:9/", secret)
    assert await asyncio.to_thread(sender.webhook._call, "msg_1", b"{}") == 0.0


@pytest.mark.parametrize(
    ("url", "text", "told"),
    [
        ("http://192.0.2.1/", "", "not https://"),
        ("https:///", "", "not https://"),
        ("https://example.com/", "whsec_c2hvcnQ=", "24 to 512 bytes"),
        ("https://example.com/", "%%", "webhook-secret"),
    ],
)
def test_what_cannot_be_sent_is_said_at_the_start(
    secret: Path, url: str, text: str, told: str
) -> None:
    secret.write_text(text or secret.read_text())
    with pytest.raises(WebhookError, match=told):
        WebhookOptions(url=url, secret_file=secret).check()


# --- what is needed ------------------------------------------------------------------------------


@contextmanager
def hosted(tmp_path: Path, replicas: int) -> Generator[tuple[Platform, Callable[..., Machine]]]:
    with platform(tmp_path) as control, ExitStack() as stack:
        new(
            control.store, "pools", name="many", region="fra", role="decode", model=MODEL,
            runner="toy", launcher="machines", threads=2, replicas=replicas,
        )  # fmt: skip
        control.look()

        def join(name: str, offers: Slot = OFFERS) -> Machine:
            made = Machine(control, name, offers)
            stack.callback(made.link.close)
            made.report()
            return made

        yield control, join


def test_what_no_host_has_room_for_is_lacking(tmp_path: Path) -> None:
    with hosted(tmp_path, replicas=5) as (control, join):
        lacks = LackingNodes(pool=POOL, nodes=5, cpus=2, memory=0, gpus=0)
        assert control.hosts.needs(600.0) == {"fra": MachineNeeds(lacking=(lacks,))}
        host = join("one")  # of four cores
        assert control.groups is not None
        asyncio.run(control.hosts.start(control.groups[POOL].launch(0)))
        [left] = control.hosts.needs(600.0)["fra"].lacking
        assert left.nodes == 3, "one is ordered, and there is room for another"
        host.report()
        host.follow()
        [left] = control.hosts.needs(600.0)["fra"].lacking
        assert left.nodes == 3
        join("two", Slot(cpus=64))
        assert control.hosts.needs(600.0) == {}


def test_a_host_without_nodes_for_long_is_idle(tmp_path: Path) -> None:
    with hosted(tmp_path, replicas=1) as (control, join):
        used, idle = join("one"), join("two")
        assert control.groups is not None
        asyncio.run(control.hosts.start(control.groups[POOL].launch(0)))
        used, idle = sorted((used, idle), key=lambda each: not each.report().start)
        used.follow()
        for _ in range(20):
            assert control.hosts.needs(60.0) == {}
            control.clock.now += HOST_SECONDS / 2
        control.clock.now += 60.0 - 10 * HOST_SECONDS
        assert control.hosts.needs(60.0) == {"fra": MachineNeeds(idle=(idle.id,))}
        asyncio.run(control.hosts.start(control.groups[POOL].launch(1)))
        assert control.hosts.needs(60.0) == {}
