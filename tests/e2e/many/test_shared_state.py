"""Edges of two homes, as on two machines, that share what they keep on NATS servers."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, new_home, until
from tests.e2e.many.test_nats import Machine
from tests.regions.drivers.nats_server import NatsCluster

from skerry import AI
from skerry.errors import QuotaExceeded
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

CAP = 0.000_02  # US$
LONGEST = 16  # tokens


class TwoHomes:
    """Edges of two homes with one account, a node of the first, and NATS servers for both."""

    def __init__(
        self, stack: ExitStack, folder: Path, model: ModelFiles, servers: NatsCluster, *cap: str
    ) -> None:
        """They run until the stack ends at the latest."""
        key, registry = secrets.token_bytes(32), servers.url.partition("?")[0]
        self.one, self.other = (
            replace(new_home(folder / name, model), state=servers.url) for name in ("a", "b")
        )
        made = self.one("tokens", "create", "--account", "new", *cap)
        self.token = made.stdout.strip()
        account = re.search(r"of account ([0-9a-f]{32})", made.stderr)
        assert account is not None, made.stderr
        self.account = account[1]
        self.node = Machine(
            self.one, registry, key, "node", "--id", "n-1", "--model", MODEL, "--runner", "toy",
            "--address", "tcp:127.0.0.1:0",
        )  # fmt: skip
        stack.callback(self.node.stop)
        self.node.ready_at()
        self.edges = [
            Machine(each, registry, key, "edge", "--id", f"e-{i}", "--model", MODEL, "--port", "0")
            for i, each in enumerate((self.one, self.other))
        ]
        for edge in self.edges:
            stack.callback(edge.stop)
        self.urls = [edge.ready_at() for edge in self.edges]
        self._stack = stack

    def client(self, url: str) -> httpx.Client:
        """Return a client of the account's OpenAI interface, which is closed with the stack."""
        client = httpx.Client(
            base_url=f"{url}/client/v4/accounts/{self.account}/ai/v1/",
            headers={"authorization": f"Bearer {self.token}"},
            timeout=120,
        )
        return self._stack.enter_context(client)


@pytest.mark.slow
def test_a_cap_holds_over_edges_of_two_homes(
    tmp_path: Path, default_model: ModelFiles, servers: NatsCluster, stack: ExitStack
) -> None:
    homes = TwoHomes(stack, tmp_path, default_model, servers, "--per-day", f"{CAP:.6f}")
    price, spent = Catalog.load().resolve(MODEL).price, 0.0

    def dollars(usage: dict[str, Any]) -> float:
        prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        cost = (prompt - cached) * price.prompt + cached * price.cached + output * price.output
        return cost / 1e6

    clients = [
        stack.enter_context(AI(base_url=url, account_id=homes.account, api_token=homes.token))
        for url in homes.urls
    ]
    refused, used = [0, 0], Counter[str]()
    while min(refused) < 3:
        for i, ai in enumerate(clients):
            try:
                usage = ai.run(MODEL, {"prompt": "The sea is", "max_tokens": LONGEST})["usage"]
            except QuotaExceeded:
                refused[i] += 1
            else:
                refused[i] = 0
                spent += dollars(usage)
                used += Counter(
                    requests=1,
                    prompt_tokens=usage["prompt_tokens"],
                    output_tokens=usage["completion_tokens"],
                )
    most = (64 * price.prompt + LONGEST * price.output) / 1e6
    assert CAP - 2 * most < spent <= CAP

    def summed(lines: Sequence[Mapping[str, Any]]) -> Counter[str]:
        [line] = lines
        return Counter({name: line[name] for name in used})

    until(lambda: all(summed(ai.usage()) == used for ai in clients))
    for edge in homes.edges:
        edge.stop()
    lines = json.loads(homes.other("usage", "--format", "json").stdout)
    assert summed(lines) == used
    assert lines[0]["cost"] == pytest.approx(spent)
    told = re.search(
        r"\[US\$ ([0-9.e-]+) of 2e-05 this day\]", homes.other("tokens", "list").stdout
    )
    assert told is not None
    assert float(told[1]) == pytest.approx(spent, rel=1e-4)
    assert not (homes.one.home / "spending.db").exists()


@pytest.mark.slow
def test_tokens_limits_and_cached_prompts_are_those_of_both_homes(
    tmp_path: Path, default_model: ModelFiles, servers: NatsCluster, stack: ExitStack
) -> None:
    homes = TwoHomes(stack, tmp_path, default_model, servers)
    assert (homes.one.home / "secret").read_bytes() == (homes.other.home / "secret").read_bytes()

    def ask(edge: int, token: str) -> httpx.Response:
        url = f"{homes.urls[edge]}/client/v4/accounts/{homes.account}/ai/v1/chat/completions"
        message = {"role": "user", "content": "The sea is wide and the sea is deep. " * 16}
        body = {"model": MODEL, "messages": [message], "max_tokens": 2}
        headers = {"authorization": f"Bearer {token}"}
        return httpx.post(url, json=body, headers=headers, timeout=60)

    def cached(answer: httpx.Response) -> int:
        return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert cached(ask(0, homes.token)) == 0
    until(lambda: cached(ask(1, homes.token)) > 0)  # one name for one prompt of the tenant's
    made = homes.other("tokens", "create", "--account", homes.account).stdout.strip()
    for edge in (1, 0):
        within(2.0, lambda edge=edge: ask(edge, made).status_code == 200)
    revoked = homes.one("tokens", "revoke", made)
    assert revoked.returncode == 0, revoked.stderr
    for edge in (0, 1):
        within(2.0, lambda edge=edge: ask(edge, made).status_code == 401)
    limits = f"tenants: [{{account: '{homes.account}', requests_per_minute: 2}}]\n"
    (homes.other.home / "limits.yaml").write_text(limits)
    for edge in (0, 1):
        within(4.0, lambda edge=edge: ask(edge, homes.token).status_code == 429)
    assert (homes.one.home / "limits.yaml").read_text() == limits


def within(seconds: float, condition: Callable[[], bool]) -> None:
    """Wait until it is so, which has to be soon; on a busy machine in thrice the time."""
    began = time.monotonic()
    until(condition)
    assert time.monotonic() - began < 3 * seconds


def test_a_conversation_goes_on_at_an_edge_of_another_home(
    tmp_path: Path, default_model: ModelFiles, servers: NatsCluster, stack: ExitStack
) -> None:
    homes = TwoHomes(stack, tmp_path, default_model, servers)
    clients = [homes.client(url) for url in homes.urls]

    def respond(edge: int, text: str, previous: str | None = None) -> dict[str, Any]:
        body = {"model": MODEL, "input": text, "max_output_tokens": 4, "temperature": 0}
        reply = clients[edge].post("responses", json=body | {"previous_response_id": previous})
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    previous, prompts = None, []
    for turn in range(6):
        answer = respond(turn % 2, f"Turn {turn}.", previous)
        previous = answer["id"]
        prompts.append(answer["usage"]["input_tokens"])
        found = clients[1 - turn % 2].get(f"responses/{previous}")
        assert found.status_code == 200
        assert found.json() == answer
    assert prompts == sorted(set(prompts)), "each turn has all before it"
    retries = [
        client.post(
            "chat/completions",
            json={"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4},
            headers={"idempotency-key": "k"},
        ).json()["choices"]
        for client in clients
    ]
    assert retries[0] == retries[1]
    other = {"model": MODEL, "messages": [{"role": "user", "content": "y"}], "max_tokens": 4}
    refused = clients[1].post("chat/completions", json=other, headers={"idempotency-key": "k"})
    assert refused.status_code == 422
    data, file = {"purpose": "batch"}, {"file": bytes(range(256)) * 4096}  # of four pieces
    uploaded = clients[0].post("files", data=data, files=file).json()
    assert clients[1].get(f"files/{uploaded['id']}").json() == uploaded
    assert clients[1].get(f"files/{uploaded['id']}/content").content == file["file"]
    assert [each["id"] for each in clients[1].get("files").json()["data"]] == [uploaded["id"]]
    assert clients[0].delete(f"responses/{previous}").status_code == 200
    assert clients[1].get(f"responses/{previous}").status_code == 404
    for name in ("responses.db", "idempotency.db", "files.db"):
        assert not (homes.one.home / name).exists()
    respond(0, "The last.")
    homes.edges[0].stop()  # which sends what it has not sent
    with AI(base_url=homes.urls[1], account_id=homes.account, api_token=homes.token) as ai:
        until(lambda: [line["requests"] for line in ai.usage()] == [8])


@pytest.mark.slow
def test_a_batch_is_polled_and_read_at_an_edge_of_another_home(
    tmp_path: Path, default_model: ModelFiles, servers: NatsCluster, stack: ExitStack
) -> None:
    homes = TwoHomes(stack, tmp_path, default_model, servers)
    one, other = (homes.client(url) for url in homes.urls)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    asked = [
        {"custom_id": f"c{i}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for i in range(8)
    ]
    content = "\n".join(json.dumps(each) for each in asked).encode()
    uploaded = one.post("files", data={"purpose": "batch"}, files={"file": content}).json()
    wanted = {
        "input_file_id": uploaded["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    key = {"idempotency-key": "k"}
    taken = one.post("batches", json=wanted, headers=key)
    assert taken.status_code == 200, taken.text
    id = taken.json()["id"]
    assert other.post("batches", json=wanted, headers=key).json()["id"] == id
    until(lambda: other.get(f"batches/{id}").json()["status"] == "completed")
    batch = other.get(f"batches/{id}").json()
    assert batch["request_counts"] == {"total": 8, "completed": 8, "failed": 0}
    rows = other.get(f"files/{batch['output_file_id']}/content").text.splitlines()
    assert sorted(json.loads(row)["custom_id"] for row in rows) == [f"c{i}" for i in range(8)]
    assert [each["id"] for each in other.get("batches").json()["data"]] == [id]
    for home in (homes.one, homes.other):
        [row] = home("batch", "list").stdout.splitlines()[1:]
        assert row.split()[:4] == [id, "completed", "8", "8"]
        assert not (home.home / "queue.db").exists()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path / "nats", size=1)
    yield cluster
    cluster.stop()
