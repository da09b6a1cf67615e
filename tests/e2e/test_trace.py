"""`skerry trace` against running processes: one alone, and a topology with two edges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.command import MODEL, SECONDS, Skerry, new_home
from tests.edge.telemetry.test_otlp import collecting

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

SECRET = "zanzibar-nobody-may-read-this"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{TRACE_ID}-00f067aa0ba902b7-01"}
TWO_EDGES = f"""\
regions:
  - {{name: fra, iata: FRA}}
pools:
  - {{name: prefill, region: fra, role: prefill, model: "{MODEL}", runner: toy}}
  - {{name: decode, region: fra, role: decode, model: "{MODEL}", runner: toy}}
edges:
  - {{name: first, region: fra, port: 0}}
  - {{name: second, region: fra, port: 0}}
"""


def ask(skerry: Skerry, url: str) -> httpx.Response:
    """A prompt with a secret in it."""
    config = json.loads((skerry.home / "config.json").read_text())
    reply = httpx.post(
        f"{url}/client/v4/accounts/{config['account_id']}/ai/run/{MODEL}",
        json={"prompt": f"{SECRET} " * 100, "max_tokens": 9},
        headers=HEADERS | {"authorization": f"Bearer {config['api_token']}"},
        timeout=SECONDS,
    )
    assert reply.status_code == 200, reply.text
    return reply


def traced(skerry: Skerry, reply: httpx.Response) -> dict[str, Any]:
    done = skerry("trace", "--json", reply.headers["x-request-id"])
    assert done.returncode == 0, done.stderr
    trace: dict[str, Any] = json.loads(done.stdout)
    return trace


def logged(skerry: Skerry, name: str) -> list[dict[str, Any]]:
    text = (skerry.home / "logs" / name).read_text()
    assert SECRET not in text
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def families(skerry: Skerry, url: str) -> set[str]:
    config = json.loads((skerry.home / "config.json").read_text())
    headers = {"authorization": f"Bearer {config['api_token']}"}
    text = httpx.get(f"{url}/metrics", headers=headers).text
    return {family.name for family in text_string_to_metric_families(text)}


def test_a_platform_in_one_process(
    default_model: ModelFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skerry = new_home(tmp_path, default_model)
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        skerry.up()
        try:
            url = skerry.status()["url"]
            reply = ask(skerry, url)
            trace = traced(skerry, reply)
            names = [span["name"] for span in trace["spans"]]
            assert names[:3] == ["request", "receive", "tokenise"]
            assert names[-4:] == ["attempt", "queue", "prefill", "decode"]
            assert trace["trace_id"] == TRACE_ID
            shown = skerry("trace", reply.headers["x-request-id"]).stdout
            assert "prefill" in shown
            assert "█" in shown
            known = families(skerry, url)
            assert "vllm:num_requests_running" in known
            assert "vllm:time_to_first_token_seconds" in known
            lines = logged(skerry, "skerry.log")
            of_it = [line for line in lines if line.get("trace_id") == TRACE_ID]
            assert {line["logger"] for line in of_it} >= {"skerry.access", "skerry.streams"}
        finally:
            skerry("down")
        assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
        assert [span.name for span in collector.spans] == names


@pytest.mark.slow
def test_a_topology_with_two_edges(default_model: ModelFiles, tmp_path: Path) -> None:
    skerry = new_home(tmp_path, default_model)
    topology = tmp_path / "topology.yaml"
    topology.write_text(TWO_EDGES)
    assert (started := skerry("up", "--detach", "--topology", str(topology))).returncode == 0, (
        started.stderr
    )
    try:
        status = skerry.status()
        [second] = [edge["url"] for edge in status["edges"] if edge["id"] == "second-0"]
        trace = traced(skerry, ask(skerry, second))
        assert trace["edge"] == "second-0"
        [route] = [span for span in trace["spans"] if span["name"] == "route"]
        [attempt] = [span for span in trace["spans"] if span["name"] == "attempt"]
        chosen = route["candidates"][0]
        assert chosen["path"] == ">".join(attempt["attributes"]["nodes"])
        assert chosen["seconds"] == pytest.approx(sum(chosen["terms"].values()), abs=1e-4)
        decode = attempt["attributes"]["nodes"][-1]
        assert any(span.get("attributes", {}).get("node") == decode for span in trace["spans"])
        of_it = [
            line for line in logged(skerry, f"{decode}.log") if line.get("trace_id") == TRACE_ID
        ]
        assert [line["outcome"] for line in of_it] == ["length"]
        assert of_it[0]["request_id"] == trace["request_id"]
        [control] = [node["control"] for node in status["nodes"] if node["id"] == decode]
        transport = httpx.HTTPTransport(uds=control.removeprefix("unix:"))
        with httpx.Client(transport=transport, base_url="http://localhost") as client:
            text = client.get("/metrics").text
        assert (
            f'vllm:request_success_total{{model_name="{MODEL}",finished_reason="length"}}' in text
        )
        logged(skerry, "second-0.log")
    finally:
        skerry("down")
