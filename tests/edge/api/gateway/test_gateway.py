"""AI Gateway's routes and options over real HTTP, as a Worker's binding and other clients send
them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.edge.api.gateway.gateways import IGNORED, status
from tests.edge.scripted_region import MODEL, Hold, answer
from tests.edge.support import CHAT, Deployment, events

RUN = "/ai-gateway/run?version=3"


def bound(edge: Deployment, path: str = RUN, **body: Any) -> httpx.Response:
    """What the binding sends byte for byte, but for the token that the runtime adds."""
    headers = {
        "content-type": "application/json",
        "cf-consn-sdk-version": "2.0.0",
        "cf-consn-model-id": MODEL,
    }
    return edge.client.post(path, content=json.dumps(body), headers=headers)


def gateway(**options: Any) -> dict[str, Any]:
    return {"inputs": {"prompt": "hi"}, "options": {"gateway": {"id": "mine", **options}}}


@pytest.mark.parametrize("path", [RUN, "/run?version=3"])
def test_the_binding_with_a_gateway(edge: Deployment, path: str) -> None:
    reply = bound(edge, path, **gateway())
    assert reply.headers["content-type"] == "application/json"
    assert (reply.json()["response"], status(reply)) == ("answer 0", None)
    streamed = bound(edge, path, inputs={"prompt": "hi", "stream": True}, options={"gateway": {}})
    assert streamed.headers["content-type"] == "text/event-stream"
    assert events(streamed.text)[-1] == "[DONE]"


def test_errors_of_the_binding_with_a_gateway(edge: Deployment) -> None:
    reply = bound(edge, inputs={}, options={"gateway": {"id": "mine"}})
    assert reply.status_code == 400
    assert reply.json()["internalCode"] == 5006
    assert httpx.post(str(reply.url), json={}, trust_env=False).status_code == 401


def test_options_of_a_gateway_reach_the_cache(edge: Deployment) -> None:
    asked = gateway(cacheTtl=60)
    first, second = bound(edge, **asked), bound(edge, **asked)
    assert (status(first), status(second)) == ("MISS", "HIT")
    assert first.json()["response"] == second.json()["response"] == "answer 0"
    assert status(bound(edge, **gateway(cacheTtl=60, skipCache=True))) is None
    keyed = gateway(cacheKey="k")
    assert status(bound(edge, **keyed)) == "MISS"
    keyed["inputs"] = {"prompt": "something else"}
    assert status(bound(edge, **keyed)) == "HIT"


def test_options_of_a_gateway_count_in_every_body(edge: Deployment) -> None:
    options = {"options": {"gateway": {"cacheTtl": 60}}}
    for send in (edge.run, edge.chat):
        body: dict[str, Any] = options | ({"prompt": "hi"} if send == edge.run else {})
        assert [status(send(**body)) for _ in range(2)] == ["MISS", "HIT"]
    path = edge.run_path.replace(MODEL, CHAT)
    chat = options | {"prompt": "ho"}
    assert [status(edge.client.post(path, json=chat)) for _ in range(2)] == ["MISS", "HIT"]


def test_a_timeout_counts_to_the_first_part(edge: Deployment) -> None:
    edge.region.script = lambda submit: [Hold()]
    reply = bound(edge, **gateway(requestTimeoutMs=50))
    assert (reply.status_code, reply.json()["internalCode"]) == (408, 3046)
    begun: dict[str, Any] = {"inputs": {"prompt": "hi", "stream": True}}
    late = bound(edge, **gateway(requestTimeoutMs=50) | begun)
    assert '"code":3046' in late.text
    edge.region.script = lambda submit: [*answer("Hello")[:5], Hold()]
    asked = gateway(requestTimeoutMs=2000) | begun
    headers = {"cf-consn-model-id": MODEL}
    with edge.client.stream("POST", RUN, json=asked, headers=headers) as stream:
        lines = (line for line in stream.iter_lines() if line.startswith("data: "))
        said = [json.loads(next(lines).removeprefix("data: "))["response"] for _ in range(5)]
    assert "".join(said) == "Hello"
    for wrong in (0, -1, 10**11):
        reply = bound(edge, **gateway(requestTimeoutMs=wrong))
        assert reply.status_code == 400
        assert "cf-aig-request-timeout" in reply.json()["message"]


def test_what_only_a_gateway_of_upstreams_has_is_named(edge: Deployment) -> None:
    asked = gateway(collectLog=True, retries={"maxAttempts": 2, "backoff": "linear"}, color="red")
    named = bound(edge, **asked).headers[IGNORED]
    assert named.split(", ") == [
        "cf-aig-backoff", "cf-aig-collect-log", "cf-aig-max-attempts", "options.gateway.color",
    ]  # fmt: skip
    assert IGNORED not in bound(edge, **gateway(collectLog=False)).headers
    for header in ("cf-aig-collect-log", "cf-aig-collect-log-payload"):
        for value, named in (("true", header), ("false", None)):
            sent = {header: value}
            reply = edge.client.post(edge.run_path, json={"prompt": "x"}, headers=sent)
            assert reply.headers.get(IGNORED) == named


def test_metadata_is_in_the_requests_trace(edge: Deployment) -> None:
    reply = bound(edge, **gateway(metadata={"team": "AI", "user": 7}, eventId="e-1"))
    found = edge.edge.traces.record(reply.headers["x-request-id"])
    assert found is not None
    [span] = [each for each in found.spans if each.name == "gateway"]
    assert span.attributes == {"metadata.team": "AI", "metadata.user": "7", "event_id": "e-1"}
    many = {str(number): number for number in range(6)}
    assert bound(edge, **gateway(metadata=many)).status_code == 400
    for text in ("{", "[]", '{"a": {}}'):
        headers = {"cf-aig-metadata": text}
        refused = edge.client.post(edge.run_path, json={"prompt": "x"}, headers=headers)
        assert refused.status_code == 400
        assert "cf-aig-metadata" in refused.text


# --- what is not there ---------------------------------------------------------------------------


def test_what_is_refused_by_its_name(edge: Deployment) -> None:
    base = edge.run_path.partition("/run/")[0]
    for path in ("/to-everything/markdown/transformer", f"{base}/tomarkdown"):
        reply = edge.client.post(path, json={"files": []})
        assert (reply.status_code, "toMarkdown" in reply.json()["errors"][0]["message"]) == (
            400,
            True,
        )
    for path in ("/to-everything/markdown/supported", f"{base}/tomarkdown/supported"):
        assert edge.client.get(path).json()["result"] == []
    assert "autorag" in edge.client.post("/autorag/rags/x/search", json={}).text
    assert edge.client.get("/autorag/rags").status_code == 400


@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_there_are_no_logs(edge: Deployment, method: str) -> None:
    reply = edge.client.request(method, "/ai-gateway/gateways/mine/logs/x")
    assert reply.status_code == 404
    assert reply.json()["errors"][0]["code"] == 7002
