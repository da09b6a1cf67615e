"""Who may do what: every route, with two accounts and every role; and nothing beyond one's own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.regions.control.log.logs import Opener
from tests.regions.control.support import ACCOUNT, Api, caller

from skerry_regions.access import ROLES, Grant
from skerry_regions.control.api.access import ControlCaller, Denials
from skerry_regions.control.api.operations import OPERATIONS
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.resources import API_TOKEN
from skerry_regions.control.desired.store import Store

pytestmark = pytest.mark.anyio

OTHER = "b" * 32
PUBLIC = {"/healthz", "/control/v1/openapi.json"}
TOKENS = "/control/v1/api_tokens"
VALIDATE = "/control/v1/validate"  # writes nothing: who may plan may read
READS = {(role, True) for role in ROLES}
"""The roles of the platform's account: all read the platform."""


@pytest.fixture
async def api(tmp_path: Path, opener: Opener) -> AsyncIterator[Api]:
    api = Api(tmp_path, opener)
    for role in ROLES:
        for account in (ACCOUNT, OTHER):
            id = f"{role}-{account[0]}"
            api.callers[id] = caller(id, role, account)
    yield api
    await api.close()


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


async def make(api: Api, bearer: str, **values: Any) -> Any:
    return await api.http.post(
        "/api_tokens", json={"name": "t"} | values, headers={"authorization": f"Bearer {bearer}"}
    )


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


@pytest.mark.parametrize("role", ["developer", "operator"])
@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"per_day": 1.0}, "per_day"),
        ({"per_month": 51.0}, "per_month"),
        ({"residency": "us"}, "residency"),
        ({"expires_at": "2030-01-01T00:00:01Z"}, "expires_at"),
        ({"models": ["*"]}, "models"),
    ],
)
async def test_nobody_mints_beyond_their_own_bounds(
    api: Api, role: Any, values: dict[str, Any], field: str
) -> None:
    """What was found: a token capped at US$ 0.000001 minted one without a cap, bound nowhere."""
    api.callers["bounded"] = caller(
        "bounded", role, per_day=0.000001, per_month=50.0, residency="eu",
        expires_at=1_893_456_000, models=("@cf/meta/*",),
    )  # fmt: skip
    refused = await make(api, "bounded", **values)
    assert (refused.status_code, refused.json()["error"]["field"]) == (403, field)
    within = await make(
        api, "bounded", per_day=0.000001, residency="eu", expires_at="2030-01-01T00:00:00Z",
        models=["@cf/meta/llama"],
    )  # fmt: skip
    assert within.status_code == 201, within.text


async def test_a_developer_makes_no_operator_and_holds_only_its_own(api: Api) -> None:
    refused = await make(api, "developer-a", role="operator")
    assert (refused.status_code, refused.json()["error"]["field"]) == (403, "role")
    uncapped = await api.make("api_tokens", name="of a colleague")
    own = (await make(api, "developer-a")).json()
    api.callers["child"] = caller(own["id"], "developer")
    grandchild = (await make(api, "child")).json()
    headers = {"authorization": "Bearer developer-a"}
    for id, status in ((uncapped["id"], 403), (own["id"], 200), (grandchild["id"], 200)):
        rotated = await api.http.post(f"/api_tokens/{id}/rotate", headers=headers)
        assert rotated.status_code == status, rotated.text
    assert rotated.json()["secret"] != grandchild["secret"]
    deleted = await api.http.delete(f"/api_tokens/{grandchild['id']}", headers=headers)
    assert deleted.status_code == 204


async def test_caps_change_within_ones_own_and_nothing_else_does(api: Api) -> None:
    api.callers["bounded"] = caller("bounded", "developer", per_day=5.0)
    uncapped = await api.make("api_tokens", name="of a colleague")
    own = (await make(api, "bounded", per_day=1.0)).json()

    async def patch(id: str, bearer: str, **values: Any) -> Any:
        headers = {"authorization": f"Bearer {bearer}"}
        return await api.http.patch(f"/api_tokens/{id}", json=values, headers=headers)

    changed = await patch(own["id"], "bounded", per_day=5.0, per_month=40)
    assert (changed.status_code, changed.json()["per_day"]) == (200, 5.0), changed.text
    assert "secret" not in changed.json()
    lifted = await patch(own["id"], "bounded", per_day=None)
    assert (lifted.json()["per_day"], lifted.json()["per_month"]) == (None, 40.0)
    assert api.tokens.caps == {own["id"]: (None, 40.0)}
    for id, bearer, values, status, field in (
        (own["id"], "bounded", {"per_day": 5.01}, 403, "per_day"),
        (own["id"], "bounded", {"per_day": "1"}, 422, "per_day"),
        (own["id"], "bounded", {"per_month": -1}, 422, "per_month"),
        (own["id"], "bounded", {"name": "other"}, 422, "name"),
        (own["id"], "bounded", {"colour": "red"}, 422, "colour"),
        (uncapped["id"], "bounded", {"per_day": 1.0}, 403, None),
        (own["id"], "viewer-a", {"per_day": 1.0}, 403, None),
        (own["id"], "developer-b", {"per_day": 1.0}, 404, None),
    ):
        refused = await patch(id, bearer, **values)
        assert (refused.status_code, refused.json()["error"]["field"]) == (status, field), values
    assert api.tokens.caps == {own["id"]: (None, 40.0)}
    api.tokens.caps.clear()
    headers = {"authorization": "Bearer bounded"}
    await api.http.post(f"/api_tokens/{own['id']}/rotate", headers=headers)
    assert api.tokens.caps == {}, "what its machine has set since stays"
    del api.tokens.published[own["id"]]  # revoked on its machine meanwhile
    assert (await patch(own["id"], "admin", per_day=1.0)).status_code == 404
    assert own["id"] not in api.store.desired.api_tokens()
    updates = [each for each in api.store.audit(0, 100) if each.action == "update"]
    assert [each.changes for each in updates] == [
        {"per_day": [1.0, 5.0], "per_month": [None, 40.0]}, {"per_day": [5.0, None]},
    ]  # fmt: skip


async def test_caps_of_accounts_are_an_operators(api: Api) -> None:
    await api.make("api_tokens", name="theirs", account_id=OTHER)
    capped = {"per_day": None, "per_month": 40.0}
    changed = await api.http.patch(f"/accounts/{OTHER}", json={"per_month": 40})
    assert (changed.status_code, changed.json()) == (200, {"id": OTHER} | capped)
    reader = {"authorization": "Bearer viewer-a"}
    listed = (await api.http.get("/accounts", headers=reader)).json()["items"]
    assert [each["per_month"] for each in listed] == [None, 40.0]
    assert [each["id"] for each in listed] == [ACCOUNT, OTHER]
    for id, bearer, values, status, field in (
        (OTHER, "viewer-a", {"per_day": 1.0}, 403, None),
        (OTHER, "operator-b", {"per_day": 1.0}, 403, None),
        (OTHER, "admin", {"per_day": -1.0}, 422, "per_day"),
        (OTHER, "admin", {"concurrency": 1}, 422, "concurrency"),
        ("me", "admin", {"per_day": 1.0}, 404, None),
    ):
        headers = {"authorization": f"Bearer {bearer}"}
        refused = await api.http.patch(f"/accounts/{id}", json=values, headers=headers)
        assert (refused.status_code, refused.json()["error"]["field"]) == (status, field)
    [line] = [each for each in api.store.audit(0, 100) if each.kind == "account"]
    assert (line.action, line.id, line.changes) == ("update", OTHER, {"per_month": [None, 40.0]})


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


async def test_a_login_makes_tokens_that_end(api: Api) -> None:
    """They are children of what the login is granted, and none is beyond it."""
    api.callers["alice"] = ControlCaller(
        id="f" * 16, account_id=OTHER, is_platforms=False, login="acme:alice", token_days=90,
        grant=Grant(role="developer", scopes=("run", "read"), per_day=5.0, residency="eu"),
    )  # fmt: skip
    now = api.clock.now
    made = (await make(api, "alice")).json()
    assert (made["parent"], made["account_id"]) == ("f" * 16, OTHER)
    login, account, grant = api.tokens.logins["f" * 16]
    assert (login, account, grant.role, grant.residency) == (
        "acme:alice", OTHER, "developer", "eu",
    )  # fmt: skip
    assert (grant.per_day, grant.expires_at) == (5.0, int(now) + 90 * 86_400)
    for values, field in (
        ({"expires_at": "2099-01-01T00:00:00Z"}, "expires_at"),
        ({"per_day": 6.0}, "per_day"),
        ({"residency": "us"}, "residency"),
    ):
        refused = await make(api, "alice", **values)
        assert (refused.status_code, refused.json()["error"]["field"]) == (403, field)
    headers = {"authorization": "Bearer alice"}
    rotated = await api.http.post(f"/api_tokens/{made['id']}/rotate", headers=headers)
    assert rotated.status_code == 200
    actors = [each.actor for each in api.store.audit(0, 100)]
    assert actors == ["acme:alice"] * 3, "of the same denial one a minute"


async def test_the_newest_of_the_audit_log(api: Api) -> None:
    for name in ("a", "b", "c"):
        await api.make("regions", name=name, iata="FRA")
    last = (await api.http.get("/audit", params={"newest": "1", "limit": "2"})).json()
    assert [each["id"] for each in last["items"]] == ["b", "c"]
    first = (await api.http.get("/audit", params={"limit": "2"})).json()
    assert [each["id"] for each in first["items"]] == ["a", "b"]
