"""`skerry trace`: what a person sees, and which edge is asked."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest
from tests.clock import Clock
from tests.edge.support import ACCOUNT, Deployment
from tests.edge.telemetry.test_tracing import new_trace, split_record

from skerry_cli import main
from skerry_cli.observe.trace import is_request_id
from skerry_cli.observe.trace_view import print_trace
from skerry_edge.telemetry.tracing import TraceRecord


def shown(record: TraceRecord) -> list[str]:
    out = io.StringIO()
    print_trace(msgspec.json.encode(record), out)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_person_sees_the_route_its_terms_and_a_timeline() -> None:
    lines = shown(split_record())
    assert lines[0] == "request 7d1f0c7e-3a52-4a33-9d0c-6a6f6d6f2a55  200 after 4000.0 ms"
    assert "edge edge-1  started 2023-11-14 22:13:20 UTC" in lines[1]
    table = lines.index("route, in ms")
    assert lines[table + 1].split() == ["placement", "total", "cached", "queue", "prefill"]
    assert lines[table + 2].split() == ["→", "p>d", "500.0", "64", "250.0", "250.0"]
    assert lines[table + 3].split() == ["d", "(KV", "of", "p)", "750.0", "64", "500.0", "250.0"]
    timeline = [line for line in lines[table + 5 :] if "█" in line]
    assert [line.strip().split("  ")[0] for line in timeline] == [
        "request", "receive", "generate", "route", "attempt",
        "queue", "hand-over", "await KV", "prefill", "decode",
    ]  # fmt: skip
    decode = timeline[-1]
    assert decode.startswith("      decode")
    assert decode.split()[1:3] == ["1950.0", "1000.0"]
    assert decode.endswith("node d  tokens 9  steps 9")


def test_what_still_runs_and_what_was_dropped_is_said() -> None:
    trace = new_trace(Clock(500.0))
    for _ in range(300):
        trace.add("x", 0.0, 0.0)
    lines = shown(trace.record("", ended=False))
    assert lines[0] == "request r  still running"
    assert lines[-1] == "44 further spans were not kept."


@pytest.fixture
def configured(edge: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path))
    monkeypatch.setenv("SKERRY_BASE_URL", f"http://127.0.0.1:{edge.port}")
    monkeypatch.setenv("SKERRY_ACCOUNT_ID", ACCOUNT)
    monkeypatch.setenv("SKERRY_API_TOKEN", edge.token)
    return edge


def test_the_edge_is_asked(configured: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    request_id = configured.run(prompt="hi").headers["x-request-id"]
    assert main(["trace", request_id]) == 0
    assert f"request {request_id}  200 after" in capsys.readouterr().out
    assert main(["trace", "--json", request_id]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["request_id"] == request_id
    assert [span["name"] for span in told["spans"]][:3] == ["request", "receive", "tokenise"]


def test_an_unknown_request(configured: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "no-such-request"]) == 1
    assert "no edge remembers a request no-such-request" in capsys.readouterr().err


def test_a_token_that_may_not_ask(
    configured: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = configured.edge.tokens.create(account_id=ACCOUNT, scopes=("run",), now=0)
    monkeypatch.setenv("SKERRY_API_TOKEN", token)
    assert main(["trace", "anything"]) == 1
    assert "role" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "a/b", "..", "a b", "é", "x" * 129, "a?b"])
def test_what_cannot_be_a_request_id(
    text: str, configured: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not is_request_id(text)
    assert main(["trace", text]) == 1
    assert "is not a request id" in capsys.readouterr().err
