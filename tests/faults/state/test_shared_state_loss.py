"""What edges of two homes share goes away under load, or has no room: nobody's request fails for
it, nothing is lost, and each is counted once. SKERRY_AWAY_SECONDS: for how long servers are away.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.disks import fill, small_disk
from tests.e2e.command import MODEL, until
from tests.e2e.many.test_shared_state import TwoHomes
from tests.regions.drivers.nats_server import NatsCluster

from skerry import AI
from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

AWAY_SECONDS = float(os.environ.get("SKERRY_AWAY_SECONDS", "30"))
CLIENTS = 3  # of each edge
PAUSE_SECONDS = 0.05
ITEMS = 400  # of a batch
DISK_BYTES = 96 << 20  # of a server
FIELDS = ("requests", "prompt_tokens", "output_tokens")

logger = logging.getLogger(__name__)


class Load:
    """Clients of every edge that chat until it is over, half of the time with a key."""

    def __init__(self, homes: TwoHomes) -> None:
        self.used = Counter[str]()
        self.failed: list[str] = []
        self._homes = homes
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._chat, args=(url, number))
            for url in homes.urls
            for number in range(CLIENTS)
        ]

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in self._threads:
                thread.join()

    def _chat(self, url: str, number: int) -> None:
        body: dict[str, Any] = {"model": MODEL, "max_tokens": 8}
        client = self._homes.client(url)
        for turn in range(1_000_000):
            if self._is_over.wait(PAUSE_SECONDS):
                return
            body["messages"] = [{"role": "user", "content": f"{number} {turn} {url}"}]
            keys = {"idempotency-key": f"{url} {number} {turn}"} if turn % 2 else {}
            reply = client.post("chat/completions", json=body, headers=keys)
            with self._lock:
                if reply.status_code != 200:
                    self.failed.append(reply.text)
                else:
                    self.used += used(reply.json()["usage"])


def used(usage: dict[str, Any]) -> Counter[str]:
    return Counter(
        requests=1,
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
    )


def submitted(client: httpx.Client) -> str:
    """A batch's id."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    lines = [
        {"custom_id": f"c{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(ITEMS)
    ]
    content = "\n".join(json.dumps(each) for each in lines).encode()
    file = client.post("files", data={"purpose": "batch"}, files={"file": content}).json()["id"]
    wanted = {
        "input_file_id": file,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    reply = client.post("batches", json=wanted)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def test_servers_that_are_away_fail_no_request_and_lose_nothing(
    tmp_path: Path, default_model: ModelFiles, servers: NatsCluster, stack: ExitStack
) -> None:
    homes = TwoHomes(stack, tmp_path, default_model, servers, "--per-day", "10")
    one, other = (homes.client(url) for url in homes.urls)
    load = Load(homes)
    with load.running():
        time.sleep(10)  # the pace is known
        batch = submitted(one)
        until(lambda: one.get(f"batches/{batch}").json()["request_counts"]["completed"] > 0)
        for name in servers.names:
            servers.kill(name)
        before = load.used["requests"]
        time.sleep(AWAY_SECONDS)
        meanwhile = load.used["requests"] - before
        for name in servers.names:
            servers.start(name)
        until(lambda: other.get(f"batches/{batch}").json().get("status") == "completed")
    logger.info("%d requests while the servers were away", meanwhile)
    assert meanwhile > AWAY_SECONDS
    assert load.failed == []
    shown = other.get(f"batches/{batch}").json()
    assert shown["request_counts"] == {"total": ITEMS, "completed": ITEMS, "failed": 0}
    rows = other.get(f"files/{shown['output_file_id']}/content").text.splitlines()
    results = [json.loads(row) for row in rows]
    assert sorted(each["custom_id"] for each in results) == sorted(f"c{i}" for i in range(ITEMS))
    total = load.used + sum(
        (used(each["response"]["body"]["usage"]) for each in results), Counter[str]()
    )
    for url in homes.urls:
        with AI(base_url=url, account_id=homes.account, api_token=homes.token) as ai:
            until(lambda: summed(ai) == total)


def summed(ai: AI) -> Counter[str]:
    [line] = ai.usage()
    return Counter({name: line[name] for name in FIELDS})


def test_full_disks_of_the_servers_are_said_so_and_cost_nothing_that_is_there(
    tmp_path: Path, default_model: ModelFiles, stack: ExitStack
) -> None:
    (tmp_path / "disks").mkdir()
    disks = [
        stack.enter_context(small_disk(tmp_path / "disks" / f"n{number}", DISK_BYTES))
        for number in range(1, 4)
    ]
    servers = NatsCluster(tmp_path / "nats", stores=tmp_path / "disks")
    stack.callback(servers.stop)
    homes = TwoHomes(stack, tmp_path, default_model, servers, "--per-day", "10")
    one, other = (homes.client(url) for url in homes.urls)
    content = bytes(range(256)) * 4096
    upload = partial(one.post, "files", data={"purpose": "batch"}, files={"file": content})
    until(lambda: upload().status_code == 200)  # new servers have elections first
    kept = upload().json()["id"]
    body = {"model": MODEL, "input": "x", "max_output_tokens": 4}
    answer = one.post("responses", json=body).json()
    load = Load(homes)
    with load.running():
        time.sleep(2)
        filled = [fill(disk) for disk in disks]
        refused = upload()
        assert refused.status_code == 503, refused.text
        logger.info("refused: %s", refused.json()["error"]["message"])
        unstored = other.post("responses", json=body)
        assert unstored.status_code == 200
        assert unstored.json()["store"] is False
        for path in filled:
            path.unlink()
        for name in servers.names:  # their JetStream is off until they are started again
            servers.kill(name)
            servers.start(name)
        until(lambda: upload().status_code == 200)
    assert load.failed == []
    assert other.get(f"files/{kept}/content").content == content
    assert other.get(f"responses/{answer['id']}").json() == answer


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path / "nats")
    yield cluster
    cluster.stop()
