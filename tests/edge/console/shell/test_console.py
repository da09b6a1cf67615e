"""The console over HTTP: whom it is shown to, logins, sessions, and what they may do."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.edge.console.shell.shell import POLICY
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, EDGE, Deployment, deployed

from skerry_edge.console.codes import new_code
from skerry_edge.limits import Limits

OTHER = "f" * 32  # an account


def log_in(browser: httpx.Client, token: str) -> dict[str, Any]:
    reply = browser.post("/console/login", json={"token": token})
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json()
    return told


def new_token(edge: Deployment, **more: Any) -> tuple[str, str]:
    """A token, and its id."""
    made: dict[str, Any] = {"account_id": ACCOUNT, "now": 0} | more
    token, record = edge.edge.tokens.create(**made)
    return token, record.id


# --- whom it is shown to --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"host": "ai.example.com"},
        {"host": "127.0.0.1.example.com"},
        {"host": "localhost", "x-forwarded-for": "192.0.2.7"},
        {"host": "localhost", "forwarded": "for=192.0.2.7"},
    ],
)
def test_on_loopback_other_names_and_proxies_see_no_console(
    browser: httpx.Client, fields: dict[str, str]
) -> None:
    for path in ("/", "/console/", "/console/session"):
        reply = browser.get(path, headers=fields)
        assert (reply.status_code, reply.json()["errors"][0]["code"]) == (401, 10000)


def test_off_there_is_none(edge: Deployment) -> None:
    for path in ("/", "/console/", "/console/session"):
        assert httpx.get(f"http://127.0.0.1:{edge.port}{path}").status_code == 401


def test_on_whoever_comes_sees_it_by_the_edges_names(tmp_path: Path) -> None:
    with deployed(tmp_path, Limits(), console="on", hosts=frozenset({"ai.test"})) as edge:
        base = f"http://127.0.0.1:{edge.port}/console/"
        proxied = {"host": "ai.test", "x-forwarded-for": "192.0.2.7"}
        assert httpx.get(base, headers=proxied).status_code == 200
        assert httpx.get(base, headers={"host": "evil.test"}).status_code == 421


def test_no_page_of_another_origin_is_let_near(browser: httpx.Client) -> None:
    page = {"origin": "https://page.example"}
    preflight = browser.options(
        "/console/login", headers=page | {"access-control-request-method": "POST"}
    )
    assert not [name for name in preflight.headers if name.startswith("access-control")]
    assert "access-control-allow-origin" not in browser.get("/console/", headers=page).headers


# --- logins --------------------------------------------------------------------------------------


def test_a_token_becomes_a_session_that_no_script_reads(
    shown: Deployment, browser: httpx.Client
) -> None:
    assert browser.get("/console/session").status_code == 401
    reply = browser.post("/console/login", json={"token": shown.token})
    assert reply.json() | {"models": []} == {
        "account": ACCOUNT, "holder": shown.token.split("_")[1], "role": "developer",
        "scopes": ["developer", "read", "run"], "edge": EDGE, "sees_platform": False,
        "version": reply.json()["version"], "models": [], "elsewhere": "",
    }  # fmt: skip
    [bytes_model, _] = reply.json()["models"]
    assert bytes_model["id"] == MODEL
    assert bytes_model["sampling"]["temperature"] == 1.0
    cookie = reply.headers["set-cookie"]
    name, _, rest = cookie.partition("=")
    assert name == f"skerry-{shown.port}"
    assert len(rest.partition(";")[0]) == 43  # 256 bits
    assert {part.strip().lower() for part in rest.split(";")[1:]} == {
        "httponly", "max-age=28800", "path=/", "samesite=strict",
    }  # fmt: skip
    assert shown.token not in reply.text + cookie
    assert browser.get("/console/session").json() == reply.json()


def test_a_wrong_token_gets_a_sentence(browser: httpx.Client) -> None:
    for content in ({"token": "skerry_no_such"}, {"token": ""}, {"code": "no.code"}, {}):
        reply = browser.post("/console/login", json=content)
        assert (reply.status_code, set(reply.json())) == (401, {"error"})
        assert "set-cookie" not in reply.headers
    assert browser.post("/console/login", content=b"[").status_code == 400
    assert browser.post("/console/login", json={"token": "x" * 10_000}).status_code == 413


def test_a_code_logs_in_once_and_within_its_minute(
    shown: Deployment, browser: httpx.Client
) -> None:
    token_id = shown.token.split("_")[1]
    now = time.time()

    def login(secret: bytes, edge: str, at: float) -> int:
        code = new_code(secret, edge, token_id, at)
        return browser.post("/console/login", json={"code": code}).status_code

    code = new_code(shown.edge.secret, EDGE, token_id, now)
    first, second = (browser.post("/console/login", json={"code": code}) for _ in range(2))
    assert (first.status_code, first.json()["holder"]) == (200, token_id)
    assert second.status_code == 401
    assert login(b"x" * 32, EDGE, now) == 401
    assert login(shown.edge.secret, "edge-2", now) == 401
    assert login(shown.edge.secret, EDGE, now - 61) == 401
    assert login(shown.edge.secret, EDGE, now + 600) == 401  # nor is one made for later


def test_a_session_ends_with_its_token(shown: Deployment, browser: httpx.Client) -> None:
    token, token_id = new_token(shown)
    log_in(browser, token)
    assert browser.get("/console/session").status_code == 200
    shown.edge.tokens.revoke(token_id)
    assert browser.get("/console/session").status_code == 401
    assert browser.get("/console/api/v1/models").status_code == 401


def test_a_session_ends_on_the_server_at_a_logout(shown: Deployment, browser: httpx.Client) -> None:
    log_in(browser, shown.token)
    cookie = dict(browser.cookies)
    assert browser.post("/console/logout").status_code == 204
    browser.cookies.update(cookie)
    assert browser.get("/console/session").status_code == 401


# --- the API of who is logged in -----------------------------------------------------------------


def test_a_page_runs_models_as_its_token_would(shown: Deployment, browser: httpx.Client) -> None:
    log_in(browser, shown.token)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    path = f"/console/api/client/v4/accounts/{ACCOUNT}/ai/v1/chat/completions"
    reply = browser.post(path, json=body)
    lines = [line for line in reply.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(line[6:]) for line in lines]
    said = "".join(each["choices"][0]["delta"].get("content", "") for each in deltas)
    assert said == "Hello" == shown.chat().json()["choices"][0]["message"]["content"]
    assert reply.headers["content-security-policy"] == POLICY
    assert shown.edge.traces.record(reply.headers["x-request-id"]) is not None


def test_another_account_is_not_there(shown: Deployment, browser: httpx.Client) -> None:
    log_in(browser, shown.token)
    path = f"/console/api/client/v4/accounts/{OTHER}/ai/models/search"
    assert browser.get(path).status_code == 404


def test_a_viewer_runs_nothing(shown: Deployment, browser: httpx.Client) -> None:
    token, _ = new_token(shown, role="viewer")
    assert log_in(browser, token)["scopes"] == ["read", "viewer"]
    reply = browser.post("/console/api/v1/chat/completions", json={"model": MODEL, "messages": []})
    assert reply.status_code == 403


def test_models_are_those_that_the_token_may_run(shown: Deployment, browser: httpx.Client) -> None:
    token, _ = new_token(shown, models=(MODEL,))
    assert [each["id"] for each in log_in(browser, token)["models"]] == [MODEL]


@pytest.mark.parametrize(
    "fields",
    [
        {"x-skerry-console": ""},
        {"origin": "https://page.example"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "origin": "null"},
    ],
)
def test_what_no_page_of_ours_sent_is_refused(
    shown: Deployment, browser: httpx.Client, fields: dict[str, str]
) -> None:
    log_in(browser, shown.token)
    calls = (
        ("POST", "/console/login"), ("POST", "/console/logout"), ("GET", "/console/session"),
        ("POST", "/console/api/v1/chat/completions"), ("GET", "/console/api/v1/models"),
    )  # fmt: skip
    for method, path in calls:
        assert browser.request(method, path, headers=fields).status_code == 403, path
    assert browser.get("/console/session").status_code == 200


def test_the_api_takes_no_cookie_and_the_console_no_token(
    shown: Deployment, browser: httpx.Client
) -> None:
    bearer = {"authorization": f"Bearer {shown.token}"}
    assert browser.get("/console/session", headers=bearer).status_code == 401
    assert browser.get("/console/api/v1/models", headers=bearer).status_code == 401
    log_in(browser, shown.token)
    assert browser.get("/v1/models").status_code == 401
