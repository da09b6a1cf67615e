"""Real edges that send clients to each other: to a nearer one, away from one that stops."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, new_home, until

from skerry import AI
from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

# Clients are told apart by which address of loopback they call from.
NEAR_FRA, NEAR_IAD, ANYWHERE = "127.0.2.1", "127.0.3.1", "127.0.0.1"
DRAIN_SECONDS = 5
TOPOLOGY = f"""\
regions:
  - {{name: fra, iata: FRA, residency: eu}}
  - {{name: iad, iata: IAD, residency: us}}
pools:
  - {{name: a, region: fra, role: hybrid, model: "{MODEL}", runner: toy, kv_blocks: 64}}
  - {{name: a, region: iad, role: hybrid, model: "{MODEL}", runner: toy, kv_blocks: 64}}
edges:
  - {{name: edge-fra, region: fra}}
  - {{name: edge-iad, region: iad}}
links: [{{between: [fra, iad], rtt: 0.080}}]
steer: {{policy: redirect, drain_seconds: {DRAIN_SECONDS}}}
dns:
  zone: example.test
  nameservers: [{{name: ns1}}]
  nets:
    - {{net: 127.0.2.0/24, region: fra}}
    - {{net: 127.0.3.0/24, region: iad}}
"""


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Skerry]:
    skerry = new_home(tmp_path_factory.mktemp("steering"), default_model)
    file = skerry.home.parent / "topology.yaml"
    file.write_text(TOPOLOGY)
    done = skerry("up", "--detach", "--topology", str(file))
    assert done.returncode == 0, done.stderr
    yield skerry
    assert skerry("down", "--timeout", "30").returncode == 0


class Edges:
    """What the platform's edges are called by, from several places."""

    def __init__(self, skerry: Skerry) -> None:
        self._skerry = skerry
        config = json.loads((skerry.home / "config.json").read_text())
        self.account, self.token = config["account_id"], config["api_token"]
        self.path = f"/client/v4/accounts/{self.account}/ai/v1/chat/completions"

    def _edge(self, name: str) -> dict[str, Any]:
        edges: list[dict[str, Any]] = self._skerry.status()["edges"]
        return next(edge for edge in edges if edge["id"].rpartition("-")[0] == name)

    def url(self, name: str) -> str:
        return str(self._edge(name)["url"])

    def pid(self, name: str) -> int:
        return int(self._edge(name)["pid"])

    def client(self, address: str) -> httpx.Client:
        """That calls from an address."""
        return httpx.Client(
            transport=httpx.HTTPTransport(local_address=address),
            headers={"authorization": f"Bearer {self.token}"},
            timeout=SECONDS,
        )

    def chat(
        self, client: httpx.Client, edge: str, query: str = "", **headers: str
    ) -> httpx.Response:
        return self.chat_at(client, self.url(edge), query, **headers)

    def chat_at(
        self, client: httpx.Client, url: str, query: str = "", **headers: str
    ) -> httpx.Response:
        body = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Hello"}]}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return client.post(url + self.path + query, json=body, headers=given)


@pytest.fixture(scope="module")
def edges(skerry: Skerry) -> Edges:
    edges = Edges(skerry)
    with edges.client(NEAR_IAD) as client:  # each has to have heard of the other
        until(lambda: edges.chat(client, "edge-fra").status_code == 307)
    return edges


def is_served(edges: Edges, client: httpx.Client, edge: str) -> bool:
    """By an edge that may still be starting."""
    try:
        return edges.chat(client, edge).status_code == 200
    except httpx.TransportError:
        return False


def test_who_is_nearer_to_another_edge_goes_there(edges: Edges) -> None:
    with edges.client(NEAR_IAD) as client:
        told = edges.chat(client, "edge-fra")
        assert told.status_code == 307
        assert told.headers["location"] == f"{edges.url('edge-iad')}{edges.path}?skerry-hops=1"
        there = client.post(told.headers["location"], json=json.loads(told.request.content))
        assert there.status_code == 200
        assert edges.chat(client, "edge-iad").status_code == 200
        # Whoever was sent on already, or is bound to this zone, is served here.
        assert edges.chat(client, "edge-fra", "?skerry-hops=1").status_code == 200
        assert edges.chat(client, "edge-fra", x_skerry_residency="eu").status_code == 200
    for address in (NEAR_FRA, ANYWHERE):
        with edges.client(address) as client:
            assert edges.chat(client, "edge-fra").status_code == 200


def test_our_sdk_follows_with_its_token(edges: Edges) -> None:
    asked: list[tuple[str, int]] = []

    def note(response: httpx.Response) -> None:
        asked.append((f"http://{response.request.url.netloc.decode()}", response.status_code))

    with edges.client(NEAR_IAD) as client:
        client.event_hooks = {"response": [note]}
        ai = AI(
            base_url=edges.url("edge-fra"), account_id=edges.account, api_token=edges.token,
            http_client=client,
        )  # fmt: skip
        assert ai.run(MODEL, {"prompt": "The sea is", "max_tokens": 4})["response"]
        stream = ai.run(MODEL, {"prompt": "The sea is", "max_tokens": 4}, stream=True)
        assert "".join(str(event["response"] or "") for event in stream)
    assert asked == 2 * [(edges.url("edge-fra"), 307), (edges.url("edge-iad"), 200)]


def test_an_edge_that_stops_sends_clients_away_and_ends_its_streams(edges: Edges) -> None:
    body = {"prompt": "The sea is", "raw": True, "max_tokens": 400, "stream": True}
    run = f"/client/v4/accounts/{edges.account}/ai/run/{MODEL}"
    with edges.client(NEAR_FRA) as client, edges.client(ANYWHERE) as other:
        with client.stream("POST", edges.url("edge-fra") + run, json=body) as stream:
            assert stream.status_code == 200
            events = stream.iter_lines()
            first = next(events)
            pid, url = edges.pid("edge-fra"), edges.url("edge-fra")
            os.kill(pid, signal.SIGTERM)
            for each in (other, client):
                until(lambda each=each: edges.chat_at(each, url).status_code == 307)
            with edges.client(NEAR_FRA) as near:  # the other one sends nobody here any more
                until(lambda: edges.chat(near, "edge-iad").status_code == 200)
            rest = list(events)
        assert first.startswith("data: ")
        assert rest[-2:] == ["data: [DONE]", ""]
        until(lambda: edges.pid("edge-fra") != pid)
        until(lambda: is_served(edges, client, "edge-fra"))
