"""What callers are told when they ask too much, in every dialect."""

from __future__ import annotations

from tests.edge.byte_text import CONTEXT
from tests.edge.http.allowing import allow
from tests.edge.scripted_region import MODEL, Hold, answer
from tests.edge.support import Deployment

from skerry.errors import Overloaded
from skerry_edge.gate.quotas import Allowance, ModelAllowance, Quotas


def test_nothing_is_told_where_nothing_is_limited(limited: Deployment) -> None:
    reply = limited.run(prompt="x")
    assert reply.status_code == 200
    assert not [name for name in reply.headers if name.startswith("x-ratelimit")]


def test_a_rate_limit_in_the_native_dialect(limited: Deployment) -> None:
    allow(limited, requests_per_minute=1)
    assert limited.run(prompt="x").headers["x-ratelimit-remaining-requests"] == "0"
    reply = limited.run(prompt="x")
    assert reply.status_code == 429
    assert reply.json()["errors"][0]["code"] == 2003
    assert "this account may ask 1 requests per minute" in reply.json()["errors"][0]["message"]
    assert 30 <= int(reply.headers["retry-after"]) <= 60
    assert "x-should-retry" not in reply.headers
    assert reply.headers["x-ratelimit-limit-requests"] == "1"


def test_a_rate_limit_in_openais_dialect(limited: Deployment) -> None:
    allow(limited, tokens_per_minute=100)
    reply = limited.chat(max_tokens=10)
    assert reply.status_code == 200
    assert reply.headers["x-ratelimit-limit-tokens"] == "100"
    reserved = int(reply.headers["x-ratelimit-remaining-tokens"])
    used = reply.json()["usage"]["total_tokens"]
    assert limited.chat(max_tokens=300).status_code == 429  # more than is left
    allow(limited, tokens_per_minute=1000)
    assert 100 - used - 10 <= reserved <= 100 - used
    allow(limited, requests_per_minute=1)
    limited.chat()
    error = limited.chat().json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")


def test_a_rate_limit_in_anthropics_dialect(limited: Deployment) -> None:
    allow(limited, requests_per_minute=1)
    limited.run(prompt="x")
    body = {"model": MODEL, "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    reply = limited.client.post("/v1/messages", json=body)
    assert reply.status_code == 429
    assert reply.json()["error"]["type"] == "rate_limit_error"


def test_a_full_model_is_capacity(limited: Deployment) -> None:
    busy = ModelAllowance(model=MODEL, all_tenants=Allowance(requests_per_minute=1))
    limited.edge.admission.hold_to(Quotas(models={MODEL: busy}))
    limited.run(prompt="x")
    reply = limited.run(prompt="x")
    assert (reply.status_code, reply.json()["errors"][0]["code"]) == (429, 3040)
    assert 30 <= int(reply.headers["retry-after"]) <= 60


def test_a_stream_holds_its_place_until_it_ends(limited: Deployment) -> None:
    allow(limited, concurrency=1)
    limited.region.script = lambda submit: [list(b"abc"), Hold()]
    body = {"prompt": "x", "stream": True}
    with limited.client.stream("POST", limited.run_path, json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        reply = limited.run(prompt="x")
        assert (reply.status_code, reply.json()["errors"][0]["code"]) == (429, 2003)
    limited.settle()
    limited.region.script = lambda submit: answer("Hello")
    assert limited.run(prompt="x").status_code == 200


def test_a_refused_request_never_reaches_the_region(limited: Deployment) -> None:
    allow(limited, requests_per_minute=1)
    limited.run(prompt="x")
    limited.run(prompt="x")
    assert len(limited.region.submits) == 1
    route = "/client/v4/accounts/{account_id}/ai/run/{model:path}"
    assert limited.edge.metrics.http_requests.value(route, "POST", "429") == 1


def test_requests_that_are_refused_for_what_they_hold_count_too(limited: Deployment) -> None:
    allow(limited, requests_per_minute=4)
    too_long = "x" * (CONTEXT * limited.edge.limits.prompt_chars_per_token + 1)
    statuses = [
        limited.run(prompt=too_long).status_code,
        limited.client.post(limited.run_path, content=b"{").status_code,
        limited.run(prompt="x", response_format={"type": "none"}).status_code,
        limited.run(prompt="x").status_code,
        limited.run(prompt=too_long).status_code,
    ]
    assert statuses == [413, 400, 400, 200, 429]


def test_a_region_that_refuses_gives_tokens_back(limited: Deployment) -> None:
    allow(limited, tokens_per_minute=100)

    def refuse(submit: object) -> list[list[int]]:
        raise Overloaded("full", retry_after=7.0)

    limited.region.script = refuse
    for _ in range(5):
        reply = limited.run(prompt="x", max_tokens=40)
        assert reply.json()["errors"][0]["code"] == 3040
        assert reply.headers["retry-after"] == "7"
