"""Tokens and caps: nobody gives more than they have, and logins end."""

from __future__ import annotations

from typing import Any

import pytest
from tests.regions.control.access.accounts import OTHER, make
from tests.regions.control.support import ACCOUNT, Api, caller

from skerry_regions.access import Grant
from skerry_regions.control.api.access import ControlCaller

pytestmark = pytest.mark.anyio


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
