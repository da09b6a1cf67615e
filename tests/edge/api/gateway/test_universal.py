"""Universal requests of AI Gateway: steps that follow one another, and URLs of a gateway."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from tests.edge.api.gateway.gateways import IGNORED, status
from tests.edge.scripted_region import MODEL, Hold, answer
from tests.edge.support import ACCOUNT, CHAT, Deployment, events

from skerry.errors import Overloaded

UNIVERSAL = "/ai-gateway/universal/run/mine"
URL = f"/v1/{ACCOUNT}/mine"
HI = [{"role": "user", "content": "hi"}]


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
