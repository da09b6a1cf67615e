"""What a page shows while nodes and regions die under its stream: real processes, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, new_home
from tests.e2e.up.topology_platform import ask_node
from tests.edge.console.browsing import PlatformPages, shot, until
from tests.edge.console.replayed_load import report
from tests.infra.watching import running

from skerry_regions.models.model_files import ModelFiles

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of the driver's pipes
]

TOPOLOGY = f"""\
regions:
  - {{name: fra, iata: FRA}}
  - {{name: iad, iata: IAD}}
  - {{name: nrt, iata: NRT}}
pools:
  - {{name: prefill, region: fra, role: prefill, model: "{MODEL}", threads: 1, kv_blocks: 256}}
  - {{name: decode, region: fra, role: decode, model: "{MODEL}", threads: 1, kv_blocks: 256,
      replicas: 2}}
  - {{name: all, region: nrt, role: hybrid, model: "{MODEL}", threads: 1, kv_blocks: 256}}
edges:
  - {{name: edge-fra, region: fra}}
  - {{name: edge-iad, region: iad}}
  - {{name: edge-nrt, region: nrt}}
links:
  - {{between: [fra, iad], rtt: 0.080}}
  - {{between: [iad, nrt], rtt: 0.150}}
  - {{between: [fra, nrt], rtt: 0.220}}
emulate: {{rtt: links}}
"""
MOST = 5.0  # seconds until the map shows a loss: half of one, and as long as a busy machine takes
TRIES = 5  # on a busy machine an answer may end before its node is found
TEXTS = """() => [...document.querySelectorAll('.lane')].map(lane =>
    [...lane.querySelectorAll('.answer p:not(.asked, .former)')].map(p => p.innerText).join(''))"""
WATCH = """selector => { window.lost = null; const look = () => {
    const found = document.querySelector(selector);
    if (found) window.lost ??= [found.dataset.region ?? found.dataset.name, Date.now() / 1000]; };
    new MutationObserver(look).observe(document.body,
        {subtree: true, childList: true, attributes: true}); }"""


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Skerry]:
    parent = tmp_path_factory.mktemp("losses")
    skerry = new_home(parent, default_model)
    (parent / "topology.yaml").write_text(TOPOLOGY)
    with running(skerry, parent / "topology.yaml"):
        yield skerry


@contextlib.contextmanager
def pages_of(chromium: Any, skerry: Skerry, region: str) -> Generator[PlatformPages]:
    edges = [each["id"] for each in skerry.status()["edges"]]
    [edge] = [each for each in edges if each.startswith(f"edge-{region}")]
    made = PlatformPages(chromium, skerry, "--edge", edge)
    yield made
    made.close()
    assert made.faults == []


def without_marks(text: str) -> str:
    return re.sub(r"[\s*`]", "", text)


class Stream:
    """An answer in the playground, and a second page that watches nodes or regions."""

    def __init__(self, pages: PlatformPages, skerry: Skerry, selector: str) -> None:
        self._skerry = skerry
        self.map = pages.open(pages.link(path="/console/regions"))
        self.map.wait_for_selector("main tbody tr")
        self.map.evaluate(WATCH, selector)
        self.page = pages.open()
        asked: list[str] = []
        self.page.on("request", lambda each: asked.append(each.post_data or ""))
        self.page.wait_for_selector("#run")
        self.page.fill("#ask", "Tell me a long story about a lighthouse and the sea.")
        self.page.fill("#seed", "7")
        self.page.click("#run")
        self.page.wait_for_selector("text=Done:")
        body = json.loads(next(each for each in asked if "lighthouse" in each))
        self.whole = self._answer(pages.base, body)
        assert without_marks(self.page.evaluate(TEXTS)[0]) == without_marks(self.whole)

    def _answer(self, base: str, body: dict[str, Any]) -> str:
        """What the API itself says, undisturbed."""
        config = json.loads((self._skerry.home / "config.json").read_text())
        body = {name: each for name, each in body.items() if not name.startswith("stream")}
        reply = httpx.post(
            f"{base}/client/v4/accounts/{config['account_id']}/ai/v1/chat/completions", json=body,
            headers={"authorization": f"Bearer {config['api_token']}"}, timeout=SECONDS,
        )  # fmt: skip
        assert reply.status_code == 200, reply.text
        text: str = reply.json()["choices"][0]["message"]["content"]
        return text

    def replayed(self, nodes: list[dict[str, Any]], dies: Callable[[Any], list[Any]]) -> float:
        """Run it again, and kill whatever dies with the one of `nodes` that it runs on. When that
        was, in Unix seconds."""
        ticks = "document.querySelectorAll('.lane .tick')[1].getAttribute('d') ?? ''"
        for _ in range(TRIES):
            self.page.click("#replay")
            until(self.page, f"({ticks}).split('M').length > 10")
            busy = [each for each in nodes if is_running(each)]
            if busy:
                killed = time.time()
                for each in dies(busy[0]):
                    os.kill(each["pid"], signal.SIGKILL)
                break
            self.page.wait_for_selector("text=Identical")
        else:
            pytest.fail("every answer had ended before its node was found")
        self.page.wait_for_selector(".lane + .lane .mark[d^='M']", state="attached")
        self.page.wait_for_selector("text=Identical, character by character. It moved once.")
        first, second = self.page.evaluate(TEXTS)
        assert without_marks(second) == without_marks(self.whole)
        assert second == first
        return killed

    def shown(self) -> tuple[str, float]:
        """What the map showed to be lost first, and when, in Unix seconds."""
        until(self.map, "window.lost")
        lost: tuple[str, float] = self.map.evaluate("window.lost")
        return lost


def is_running(node: dict[str, Any]) -> bool:
    """Whether a request runs on a node, by its own word."""
    engines = ask_node(node, "GET", "/status").json()["engines"].values()
    return any(each["running"] for each in engines)


def test_a_decode_node_is_killed_under_a_stream(chromium: Any, skerry: Skerry) -> None:
    nodes = [each for each in skerry.status()["nodes"] if each["role"] == "decode"]
    with pages_of(chromium, skerry, "fra") as pages:
        stream = Stream(pages, skerry, "tr[data-name^='fra-decode-'][data-state='down']")
        killed = stream.replayed(nodes, lambda node: [node])
        lost, at = stream.shown()
        assert lost in {each["id"] for each in nodes}
        report("a killed node, on the map", at - killed, "s", MOST)
        shot(stream.page, "node-lost-dark")
        stream.map.wait_for_selector("tr[data-name^='fra-decode-'][data-state='ready'] >> nth=1")


def test_a_region_is_killed_under_a_stream(chromium: Any, skerry: Skerry) -> None:
    status = skerry.status()
    nodes = [each for each in status["nodes"] if each["role"] != "prefill"]
    died: list[dict[str, Any]] = []

    def region_of(node: dict[str, Any]) -> list[dict[str, Any]]:
        there = [*status["nodes"], *status["edges"]]
        died[:] = [each for each in there if each["region"] == node["region"]]
        return died

    with pages_of(chromium, skerry, "iad") as pages:
        stream = Stream(pages, skerry, ".light[data-state='down']")
        killed = stream.replayed(nodes, region_of)
        lost, at = stream.shown()
        assert lost == died[0]["region"]
        report("a killed region, on the map", at - killed, "s", MOST)
        stream.map.wait_for_selector(f".light[data-region='{lost}'][data-state='ready']")
