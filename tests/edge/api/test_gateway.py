"""AI Gateway's routes and options over real HTTP, as a Worker's binding and other clients send
them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.edge.support import (
    ACCOUNT,
    CHAT,
    MODEL,
    Deployment,
    Hold,
    answer,
    deployed,
    events,
)

from skerry.errors import Overloaded
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits

RUN = "/ai-gateway/run?version=3"
UNIVERSAL = "/ai-gateway/universal/run/mine"
URL = f"/v1/{ACCOUNT}/mine"
HI = [{"role": "user", "content": "hi"}]
IGNORED = "x-skerry-ignored"


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Deployment]:
    """An edge that remembers, whose engine says something else each time."""
    stores = Stores.in_folder(tmp_path / "stores", edge="edge-1")
    with deployed(tmp_path, Limits(drain_seconds=1), stores=stores) as deployment:
        region = deployment.region
        region.script = lambda submit: answer(f"answer {len(region.streams)}")
        yield deployment


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


def status(reply: httpx.Response) -> str | None:
    assert reply.status_code == 200, reply.text
    return reply.headers.get("cf-aig-cache-status")


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
    found = edge.edge.traces.find(reply.headers["x-request-id"])
    assert found is not None
    [span] = [each for each in json.loads(found.content)["spans"] if each["name"] == "gateway"]
    assert span["attributes"] == {"metadata.team": "AI", "metadata.user": "7", "event_id": "e-1"}
    many = {str(number): number for number in range(6)}
    assert bound(edge, **gateway(metadata=many)).status_code == 400
    for text in ("{", "[]", '{"a": {}}'):
        headers = {"cf-aig-metadata": text}
        refused = edge.client.post(edge.run_path, json={"prompt": "x"}, headers=headers)
        assert refused.status_code == 400
        assert "cf-aig-metadata" in refused.text


# --- universal requests --------------------------------------------------------------------------


def step(**fields: Any) -> dict[str, Any]:
    return {
        "provider": "workers-ai",
        "endpoint": MODEL,
        "headers": {},
        "query": {"prompt": "x"},
    } | fields


@pytest.mark.parametrize("path", [UNIVERSAL, URL])
def test_the_first_step_that_succeeds_answers(edge: Deployment, path: str) -> None:
    reply = edge.client.post(path, json=[step(), step()])
    assert reply.json()["result"]["response"] == "answer 0"
    assert reply.headers["cf-aig-step"] == "0"
    fails = [step(provider="openai"), step(endpoint="@cf/none/no"), step(query={"prompt": ""})]
    reply = edge.client.post(path, json=[*fails, step()])
    assert (reply.json()["result"]["response"], reply.headers["cf-aig-step"]) == ("answer 1", "3")
    reply = edge.client.post(path, json=fails)
    assert reply.status_code == 400
    assert "cf-aig-step" not in reply.headers
    assert reply.json()["success"] is False


def test_a_step_that_meets_a_full_platform_is_followed_by_the_next(edge: Deployment) -> None:
    def script(submit: Any) -> Any:
        if submit.model == MODEL:
            raise Overloaded("Full.", retry_after=1)
        return answer("from the other")

    edge.region.script = script
    reply = edge.client.post(UNIVERSAL, json=[step(), step(endpoint=CHAT)])
    assert reply.headers["cf-aig-step"] == "1"
    assert reply.json()["result"]["choices"][0]["message"]["content"] == "from the other"


def test_what_steps_ignore_is_named_once(edge: Deployment) -> None:
    first = step(query={"prompt": "", "color": 1})
    second = step(headers={"cf-aig-collect-log": "true"}, query={"prompt": "x", "color": 2})
    reply = edge.client.post(UNIVERSAL, json=[first, second])
    assert (reply.headers["cf-aig-step"], reply.headers[IGNORED]) == (
        "1",
        "cf-aig-collect-log, color",
    )


def test_steps_of_openais_dialect(edge: Deployment) -> None:
    query = {"model": MODEL, "messages": HI}
    for provider, endpoint, prefix in (
        ("workers-ai", "v1/chat/completions", ""),
        ("compat", "chat/completions", "workers-ai/"),
    ):
        body = [step(provider=provider, endpoint=endpoint, query=query | {"model": prefix + MODEL})]
        reply = edge.client.post(UNIVERSAL, json=body)
        assert reply.json()["object"] == "chat.completion", reply.text
        assert IGNORED not in reply.headers
        configured = [body[0] | {"config": {"requestTimeout": 1}}]
        reply = edge.client.post(UNIVERSAL, json=configured)
        assert reply.headers[IGNORED] == "[].config"
    wrong = edge.client.post(UNIVERSAL, json=[step(provider="compat", endpoint="embeddings")])
    assert "[0].endpoint" in wrong.text


def test_a_steps_own_headers_count_for_it_alone(edge: Deployment) -> None:
    kept = step(headers={"cf-aig-cache-ttl": 60, "Authorization": "Bearer other"})
    assert status(edge.client.post(UNIVERSAL, json=[kept])) == "MISS"
    assert status(edge.client.post(UNIVERSAL, json=[kept])) == "HIT"
    bad = step(headers={"cf-aig-cache-ttl": "soon"})
    reply = edge.client.post(UNIVERSAL, json=[bad, step()])
    assert (status(reply), reply.headers["cf-aig-step"]) == (None, "1")


def test_a_steps_time_limit_counts_from_its_start(edge: Deployment) -> None:
    """And leads to the next one."""
    edge.region.script = lambda submit: [Hold()] if submit.model == MODEL else answer("begun")
    limit = {"cf-aig-request-timeout": 1500}  # of both together, had it begun with the request
    body = [step(headers=limit), step(endpoint=CHAT, headers=limit)]
    reply = edge.client.post(UNIVERSAL, json=body)
    assert reply.headers["cf-aig-step"] == "1", reply.text
    assert reply.json()["result"]["choices"][0]["message"]["content"] == "begun"


def test_a_stream_that_does_not_begin_is_followed_by_the_next(edge: Deployment) -> None:
    def script(submit: Any) -> Any:
        return [Overloaded("Full.", retry_after=1)] if submit.model == MODEL else answer("begun")

    edge.region.script = script
    streamed = {"prompt": "x", "stream": True}
    body = [step(query=streamed | {"colour": 1}), step(endpoint=CHAT, query=streamed)]
    reply = edge.client.post(UNIVERSAL, json=body)
    assert reply.headers["cf-aig-step"] == "1"
    assert IGNORED not in reply.headers, "of the step that failed"
    said = [each for each in events(reply.text) if each != "[DONE]" and each.get("choices")]
    assert "".join(each["choices"][0]["delta"].get("content", "") for each in said) == "begun"
    alone = edge.client.post(UNIVERSAL, json=body[:1])
    assert (alone.status_code, alone.json()["errors"][0]["code"]) == (429, 3040)
    edge.region.script = lambda submit: [*answer("half")[:4], Overloaded("Full.", retry_after=1)]
    begun = edge.client.post(UNIVERSAL, json=body)
    assert begun.headers["cf-aig-step"] == "0"
    assert '"code":3040' in begun.text


@pytest.mark.parametrize("body", [[], {}, [{"provider": "workers-ai"}], [step()] * 17, "x"])
def test_lists_that_are_none(edge: Deployment, body: Any) -> None:
    assert edge.client.post(UNIVERSAL, json=body).status_code == 400
    assert edge.region.streams == []


# --- a gateway's URL -----------------------------------------------------------------------------


def test_urls_of_a_gateway_lead_somewhere(edge: Deployment) -> None:
    base = f"http://127.0.0.1:{edge.port}"
    for provider in ("workers-ai", "compat", "universal"):
        told = edge.client.get(f"/ai-gateway/gateways/mine/url/{provider}").json()["result"]["url"]
        rest = "" if provider == "universal" else f"/{provider}"
        assert told == f"{base}/v1/{ACCOUNT}/mine{rest}"
    path, runtime = "/ai-gateway/gateways/mine/url/compat", {"host": "workers-binding.ai"}
    told = edge.client.get(path, headers=runtime).json()["result"]["url"]
    assert told == f"{base}/v1/{ACCOUNT}/mine/compat", "what the runtime calls it is no address"
    openai = edge.client.get("/ai-gateway/gateways/mine/url/openai")
    assert openai.status_code == 404
    assert "workers-ai and compat" in openai.text


def test_models_under_a_gateways_url(edge: Deployment) -> None:
    cached = {"cf-aig-cache-ttl": "60"}
    native = f"{URL}/workers-ai/{MODEL}"
    first = edge.client.post(native, json={"prompt": "hi"}, headers=cached)
    assert first.json()["result"]["response"] == "answer 0"
    assert status(edge.client.post(native, json={"prompt": "hi"}, headers=cached)) == "HIT"
    other = native.replace("/mine/", "/other/")
    assert status(edge.client.post(other, json={"prompt": "hi"}, headers=cached)) == "MISS"
    chat = edge.client.post(
        f"{URL}/workers-ai/v1/chat/completions", json={"model": MODEL, "messages": HI}
    )
    assert chat.json()["model"] == MODEL
    compat = {"model": f"workers-ai/{MODEL}", "messages": HI}
    reply = edge.client.post(f"{URL}/compat/chat/completions", json=compat)
    assert reply.json()["object"] == "chat.completion"
    wrong = edge.client.post(f"{URL}/compat/chat/completions", json=compat | {"model": "openai/x"})
    assert wrong.json()["error"]["code"] == "model_not_found"
    response = {"model": MODEL, "input": "x"}
    reply = edge.client.post(f"{URL}/workers-ai/v1/responses", json=response)
    assert reply.json()["object"] == "response"


def test_a_gateways_url_is_its_accounts(edge: Deployment) -> None:
    path = f"/v1/{'f' * 32}/mine/workers-ai/{MODEL}"
    assert edge.client.post(path, json={"prompt": "x"}).status_code == 404
    assert edge.client.post("/v1/nobody/mine", json=[step()]).status_code == 404
    native = f"http://127.0.0.1:{edge.port}{URL}/workers-ai/{MODEL}"
    shown = {"cf-aig-authorization": f"Bearer {edge.token}"}
    reply = httpx.post(native, json={"prompt": "x"}, headers=shown, trust_env=False)
    assert reply.status_code == 200
    both = {**shown, "authorization": "Bearer wrong"}
    assert httpx.post(native, json={}, headers=both, trust_env=False).status_code == 401


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
