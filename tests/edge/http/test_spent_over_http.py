"""What callers are told of money and patience, and what ends at a revocation."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta

import pytest
from httpx import Response
from tests.edge.http.allowing import allow
from tests.edge.scripted_region import MODEL, Hold
from tests.edge.support import ACCOUNT, PATIENCE, Deployment, events, eventually, spent

from skerry.errors import AuthenticationError, PermissionDenied
from skerry_edge.api.operations import OPERATIONS
from skerry_edge.money.caps import Caps
from skerry_regions.access import SCOPES

PRICE = (0.5, 2.0)  # of MODEL: US$ per million tokens of prompt and output


def with_token(edge: Deployment, caps: Caps) -> tuple[str, dict[str, str]]:
    token, record = edge.edge.tokens.create(account_id=ACCOUNT, caps=caps, now=0)
    return record.id, {"authorization": f"Bearer {token}"}


# --- money ---------------------------------------------------------------------------------------


def test_a_cap_in_both_dialects(limited: Deployment) -> None:
    id, headers = with_token(limited, Caps(per_day=0.001))
    reply = limited.client.post(
        limited.run_path, json={"prompt": "x", "max_tokens": 100}, headers=headers
    )
    assert reply.status_code == 200
    usage = reply.json()["result"]["usage"]
    cost = (usage["prompt_tokens"] * PRICE[0] + usage["completion_tokens"] * PRICE[1]) / 1e6
    spending = limited.edge.admission.spending
    assert spending is not None
    eventually(lambda: spent(spending, id)[0] == pytest.approx(cost, abs=1e-9))

    limited.edge.tokens.set_caps(id, Caps(per_day=cost))
    reply = limited.client.post(limited.run_path, json={"prompt": "x"}, headers=headers)
    assert (reply.status_code, reply.json()["errors"][0]["code"]) == (429, 4006)
    assert reply.headers["x-should-retry"] == "false"
    assert 0 < int(reply.headers["retry-after"]) <= 86_400

    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    error = limited.client.post(limited.chat_path, json=chat, headers=headers).json()["error"]
    assert (error["code"], error["type"]) == ("insufficient_quota", "insufficient_quota")
    assert limited.run(prompt="x").status_code == 200  # another token of the account


def test_what_a_child_spends_is_its_ancestors_and_its_accounts(limited: Deployment) -> None:
    tokens, spending = limited.edge.tokens, limited.edge.admission.spending
    assert spending is not None
    rich = Caps(per_day=1.0)
    _, root = tokens.create(account_id=ACCOUNT, role="developer", caps=rich, now=0)
    _, middle = tokens.create(account_id=ACCOUNT, role="developer", parent=root.id, now=0)
    children = [tokens.create(account_id=ACCOUNT, parent=middle.id, now=0)[0] for _ in range(2)]

    def ask(token: str) -> Response:
        headers = {"authorization": f"Bearer {token}"}
        return limited.client.post(limited.run_path, json={"prompt": "x"}, headers=headers)

    allow(limited, per_day=1.0, per_month=1.0)
    usage = ask(children[0]).json()["result"]["usage"]
    cost = (usage["prompt_tokens"] * PRICE[0] + usage["completion_tokens"] * PRICE[1]) / 1e6
    for id in (root.id, ACCOUNT):
        eventually(lambda id=id: spent(spending, id) == pytest.approx((cost, cost), abs=1e-9))
    tokens.set_caps(root.id, Caps(per_day=cost))
    refused = ask(children[1])
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (429, 4006)
    assert "that this one was made with" in refused.text
    assert limited.run(prompt="x").status_code == 200, "which is no child of it"
    for period in ("per_day", "per_month"):
        allow(limited, **{period: cost})
        refused = limited.run(prompt="x")
        assert (refused.status_code, refused.json()["errors"][0]["code"]) == (429, 4006)
        assert f"This account may spend US$ {cost:g} {period.replace('_', ' ')}" in refused.text


def test_a_stream_that_is_broken_off_costs_what_it_made(limited: Deployment) -> None:
    id, headers = with_token(limited, Caps(per_day=1.0))
    limited.region.script = lambda submit: [list(b"abc"), Hold()]
    body = {"prompt": "x", "stream": True, "raw": True}
    with limited.client.stream("POST", limited.run_path, json=body, headers=headers) as stream:
        next(stream.iter_lines())
    limited.settle()
    spending = limited.edge.admission.spending
    assert spending is not None
    eventually(lambda: spent(spending, id)[0] < 1e-4)  # it is settled
    prompt = len(limited.region.submits[-1].prompt_ids)
    cost = (prompt * PRICE[0] + 3 * PRICE[1]) / 1e6
    assert spent(spending, id)[0] == pytest.approx(cost, abs=1e-9)


def test_who_has_a_role_sees_what_is_spent_of_each_cap(limited: Deployment) -> None:
    _, theirs = limited.edge.tokens.create(
        account_id="f" * 32, caps=Caps(per_day=1.0), now=0
    )  # of another account
    id, headers = with_token(limited, Caps(per_day=1.0, per_month=9.0))
    other, _ = with_token(limited, Caps(per_day=2.0))
    _, uncapped = with_token(limited, Caps())
    allow(limited, per_month=50.0)
    reply = limited.client.post(limited.run_path, json={"prompt": "x"}, headers=headers)
    usage = reply.json()["result"]["usage"]
    cost = (usage["prompt_tokens"] * PRICE[0] + usage["completion_tokens"] * PRICE[1]) / 1e6
    spending = limited.edge.admission.spending
    assert spending is not None
    eventually(lambda: spent(spending, id)[0] == pytest.approx(cost, abs=1e-9))
    path = f"/client/v4/accounts/{ACCOUNT}/ai/caps"

    def told(headers: dict[str, str]) -> dict[tuple[str, str], dict[str, object]]:
        rows = limited.client.get(path, headers=headers).json()["result"]
        return {(each["id"], each["period"]): each for each in rows}

    every = told({})
    assert {key: each["cap"] for key, each in every.items()} == {
        (id, "day"): 1.0, (id, "month"): 9.0, (other, "day"): 2.0, (ACCOUNT, "month"): 50.0,
    }  # fmt: skip
    for key, payer in ((id, "token"), (ACCOUNT, "account")):
        assert every[key, "month"]["payer"] == payer
        assert every[key, "month"]["spent"] == pytest.approx(cost, abs=1e-9)
    assert every[other, "day"]["spent"] == 0.0
    now = datetime.now(UTC)
    assert every[id, "day"]["ends_at"] == pytest.approx(
        (now.replace(hour=0, minute=0, second=0) + timedelta(days=1)).timestamp(), abs=5
    )
    assert told(headers).keys() == {(id, "day"), (id, "month"), (ACCOUNT, "month")}
    assert told(uncapped).keys() == {(ACCOUNT, "month")}
    assert theirs.id not in {key for key, _ in every}


# --- the caller's patience -----------------------------------------------------------------------


def test_reject_if_busy_reaches_the_engine(limited: Deployment) -> None:
    limited.run(prompt="x")
    limited.run(prompt="x", options={"rejectIfBusy": True, "tags": ["a"]})
    limited.chat(options={"rejectIfBusy": True})
    assert [submit.reject_if_busy for submit in limited.region.submits] == [False, True, True]
    reply = limited.run(prompt="x", options={"rejectIfBusy": "yes"})
    assert reply.json()["errors"][0]["code"] == 5006
    assert "options.rejectIfBusy" in reply.json()["errors"][0]["message"]


@pytest.mark.parametrize("model", ["@cf/test/bytes", "@cf/test/chat"])
def test_the_bindings_options_are_beside_the_inputs(limited: Deployment, model: str) -> None:
    for inside, outside in ((True, False), (False, True)):
        limited.client.post(
            "/run?version=3",
            headers={"cf-consn-model-id": model},
            json={
                "inputs": {"prompt": "x", "options": {"rejectIfBusy": inside}},
                "options": {"rejectIfBusy": outside},
            },
        )
    assert [submit.reject_if_busy for submit in limited.region.submits] == [False, True]


def test_the_callers_deadline(limited: Deployment) -> None:
    limited.region.script = lambda submit: [Hold()]
    headers = {"cf-aig-request-timeout": "50"}
    reply = limited.client.post(limited.run_path, json={"prompt": "x"}, headers=headers)
    assert (reply.status_code, reply.json()["errors"][0]["code"]) == (408, 3046)
    assert reply.headers["x-should-retry"] == "false"
    assert all(stream.aborted.wait(PATIENCE) for stream in limited.region.streams)


def test_of_a_stream_the_deadline_is_for_its_beginning(limited: Deployment) -> None:
    body = {"prompt": "x", "stream": True}
    limited.region.script = lambda submit: [Hold()]
    hurried = {"cf-aig-request-timeout": "100"}
    reply = limited.client.post(limited.run_path, json=body, headers=hurried)
    assert '"code":3046' in reply.text
    began = threading.Event()

    def late(submit: object) -> list[list[int] | Hold]:
        began.set()
        return [list(b"abc"), Hold()]

    limited.region.script = late
    patient = {"cf-aig-request-timeout": "1500"}  # time enough to begin, also on a busy machine
    with limited.client.stream("POST", limited.run_path, json=body, headers=patient) as stream:
        comments = (line for line in stream.iter_lines() if line.startswith(":"))
        for _ in range(17):  # it lives on: 1.7 s
            next(comments)
    assert began.is_set()


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "9" * 11])
def test_a_deadline_is_a_number_of_milliseconds(limited: Deployment, value: str) -> None:
    headers = {"cf-aig-request-timeout": value}
    reply = limited.client.post(limited.run_path, json={"prompt": "x"}, headers=headers)
    assert (reply.status_code, reply.json()["errors"][0]["code"]) == (400, 5006)


# --- tokens --------------------------------------------------------------------------------------


def test_running_streams_of_a_revoked_token_end(limited: Deployment) -> None:
    id, headers = with_token(limited, Caps())
    limited.region.script = lambda submit: [list(b"abc"), Hold()]
    body = {"prompt": "x", "stream": True}
    admission, tokens = limited.edge.admission, limited.edge.tokens
    with limited.client.stream("POST", limited.run_path, json=body, headers=headers) as stream:
        lines = stream.iter_lines()
        next(lines)
        tokens.revoke(id)
        revoked = AuthenticationError("This API token was revoked.")
        assert admission.end(lambda wanted: not tokens.is_live(wanted.caller.token), revoked) == 1
        rest = "\n".join(lines)
    assert "event: error" in rest
    assert events(rest)[-1]["errors"][0]["code"] == 10000
    reply = limited.client.post(limited.run_path, json={"prompt": "x"}, headers=headers)
    assert reply.status_code == 401


def test_every_route_that_is_not_public_needs_a_scope(limited: Deployment) -> None:
    """Deny by default: no route serves whatever token comes."""
    bearers = {
        scope: limited.edge.tokens.create(account_id=ACCOUNT, scopes=(scope,), now=0)[0]
        for scope in SCOPES
    }
    public = {"/healthz", "/readyz", "/openapi.json"}
    for each in OPERATIONS:
        if each.path in public | {"/client/v4/user/tokens/verify"}:
            continue
        own = re.sub(r"{account_id[^}]*}", ACCOUNT, each.path)
        path = re.sub(r"{[^}]*}", "x", own)
        headers = [{"authorization": f"Bearer {token}"} for token in bearers.values()]
        replies = [limited.client.request(each.method, path, headers=sent) for sent in headers]
        statuses = [reply.status_code for reply in replies]
        assert PermissionDenied.status in statuses, f"{each.method} {path}"
