"""Who may do what: every route, with two accounts and every role; and nothing beyond one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.regions.control.access.accounts import OTHER, make
from tests.regions.control.support import ACCOUNT, Api, caller

from skerry_regions.access import ROLES
from skerry_regions.control.api.access import Denials
from skerry_regions.control.api.operations import OPERATIONS
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.resources import API_TOKEN
from skerry_regions.control.desired.store import Store

pytestmark = pytest.mark.anyio

PUBLIC = {"/healthz", "/control/v1/openapi.json"}
TOKENS = "/control/v1/api_tokens"
VALIDATE = "/control/v1/validate"  # writes nothing: who may plan may read
READS = {(role, True) for role in ROLES}
"""The roles of the platform's account: all read the platform."""


def allowed(method: str, path: str) -> set[tuple[str, bool]]:
    """Roles, and whether they are of the platform's account: written down here once more."""
    if path in PUBLIC or "/terraform/states/" in path:
        return {("nobody", False)} | {(role, own) for role in ROLES for own in (True, False)}
    if path == TOKENS or path.startswith(f"{TOKENS}/"):
        if method == "GET":
            return {(role, own) for role in ROLES for own in (True, False)}
        return {
            ("operator", True),
            ("operator", False),
            ("developer", True),
            ("developer", False),
        }
    return READS if method == "GET" or path == VALIDATE else {("operator", True)}


async def test_every_route_with_two_accounts_and_every_role(api: Api) -> None:
    bearers = {
        (role, own): f"{role}-{'a' if own else 'b'}" for role in ROLES for own in (True, False)
    }
    bearers["nobody", False] = "nobody"
    walked = 0
    for operation in OPERATIONS:
        path = operation.path.replace("{id}", "x").replace("{name}", "x")
        for (role, own), bearer in bearers.items():
            answer = await api.http.request(
                operation.method, f"http://control{path}",
                headers={"authorization": f"Bearer {bearer}"}, content=b"[]",
            )  # fmt: skip
            is_allowed = (role, own) in allowed(operation.method, operation.path)
            case = (operation.method, path, role, own, answer.status_code)
            assert (answer.status_code != 403) == is_allowed, case
            assert answer.status_code != 401, case
            walked += 1
    assert walked == 7 * len(OPERATIONS) > 250
    assert api.store.desired.records == {}, "nobody changed anything"


async def test_an_operator_of_another_account_is_a_developer(api: Api) -> None:
    api.callers["fake"] = caller("fake", "operator", OTHER)
    headers = {"authorization": "Bearer fake"}
    assert (await api.http.get("/nodes", headers=headers)).status_code == 403
    assert (await api.http.get("/api_tokens", headers=headers)).status_code == 200


async def test_another_account_is_never_reached(api: Api) -> None:
    """What was found: a token of another account minted one of the platform's own."""
    theirs = await api.make("api_tokens", name="theirs")
    made = await make(api, "developer-b", account_id=ACCOUNT)
    assert (made.status_code, made.json()["error"]["field"]) == (403, "account_id")
    own = (await make(api, "developer-b")).json()
    assert (own["account_id"], own["parent"], own["scopes"]) == (
        OTHER,
        "developer-b",
        ["run", "read"],
    )
    headers = {"authorization": "Bearer developer-b"}
    listed = (await api.http.get("/api_tokens", headers=headers)).json()["items"]
    assert [each["id"] for each in listed] == [own["id"]]
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/rotate")):
        answer = await api.http.request(
            method, f"/api_tokens/{theirs['id']}{path}", headers=headers
        )
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found"), method
    assert api.tokens.published.keys() == {theirs["id"], own["id"]}
    everything = (await api.http.get("/api_tokens")).json()["items"]
    assert {each["id"] for each in everything} == {theirs["id"], own["id"]}


async def test_the_scope_admin_is_taken_as_a_role_with_a_warning(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    for account, role in ((None, "operator"), (OTHER, "developer")):
        made = await api.make(
            "api_tokens", name="old", scopes=["admin", "read"], account_id=account
        )
        assert (made["role"], made["scopes"]) == (role, ["admin", "read"])
    assert "it is refused from version 0.3 on" in caplog.text


async def test_tokens_of_an_earlier_database_get_roles(api: Api) -> None:
    with api.store.writing() as writing:
        for id, account in (("1" * 16, None), ("2" * 16, OTHER)):
            spec = API_TOKEN.spec(name="old", account_id=account, scopes=("admin", "read"))  # type: ignore[call-arg]
            writing.put(API_TOKEN, id, spec)
    for _ in range(2):
        Changes(api.store, api.tokens, b"s" * 32).give_roles(ACCOUNT)
    tokens = api.store.desired.api_tokens()
    assert {id: spec.role for id, spec in tokens.items()} == {
        "1" * 16: "operator", "2" * 16: "developer",
    }  # fmt: skip
    assert len(api.store.audit(0, 10)) == 2


async def test_every_change_that_is_denied_is_in_the_audit_log(api: Api) -> None:
    await api.make("regions", name="fra", iata="FRA")
    token = await api.make("api_tokens", name="t")
    for bearer, method, path in (
        ("wrong", "DELETE", "/regions/fra"),
        ("wrong", "DELETE", "/pools/x"),  # of who shows no token, once a minute
        ("viewer-a", "PATCH", "/regions/fra"),
        ("viewer-a", "PATCH", "/regions/fra"),
        ("developer-b", "DELETE", f"/api_tokens/{token['id']}"),
        ("viewer-a", "GET", "/join_tokens"),  # no change
    ):
        headers = {"authorization": f"Bearer {bearer}"}
        await api.http.request(method, path, headers=headers, json={})
    entries = (await api.http.get("/audit")).json()["items"]
    assert [(each["actor"], each["action"], each["id"]) for each in entries[2:]] == [
        ("nobody", "delete", "/control/v1/regions/fra"),
        ("viewer-a", "patch", "/control/v1/regions/fra"),
        ("developer-b", "delete", f"/control/v1/api_tokens/{token['id']}"),
    ]
    assert [each["outcome"] for each in entries] == ["granted"] * 2 + ["denied"] * 3
    assert all(each["changes"]["denied"] for each in entries[2:])


def test_who_is_denied_often_pushes_nothing_out_of_the_log(tmp_path: Path) -> None:
    store = Store(tmp_path / "control.db")
    with store.writing() as writing:
        writing.audit("a", "create", "region", "fra", 1, {})
        for number in range(11_100):
            writing.audit("b", "post", "route", str(number), 1, {}, outcome="denied")
    kept = store.audit(0, 20_000)
    assert kept[0].actor == "a"
    assert 10_000 <= len(kept) - 1 < 11_001
    denials = Denials(store, lambda: 0.0)
    for number in range(3000):
        denials.note("nobody", "POST", f"/{number}", "no token")
    assert len(store.audit(kept[-1].sequence, 10)) == 1
    store.close()


async def test_the_newest_of_the_audit_log(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.make("regions", name=name, iata="FRA")
    last = (await api.http.get("/audit", params={"newest": "1", "limit": "2"})).json()
    assert [each["id"] for each in last["items"]] == ["b", "c"]
    first = (await api.http.get("/audit", params={"limit": "2"})).json()
    assert [each["id"] for each in first["items"]] == ["a", "b"]
