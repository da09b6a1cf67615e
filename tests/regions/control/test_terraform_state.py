"""Terraform's `http` backend: states, and locks that hold."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.regions.control.support import Api

pytestmark = pytest.mark.anyio

LOCK = {"ID": "one", "Operation": "OperationTypeApply", "Who": "me@here"}
OTHER = {"ID": "two", "Operation": "OperationTypeApply", "Who": "you@there"}
BASIC = {"authorization": "Basic " + base64.b64encode(b"skerry:admin").decode()}


class States:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def __call__(self, method: str, query: str = "", **options: Any) -> httpx.Response:
        options = {"headers": BASIC, **options}
        return await self._http.request(method, f"/terraform/states/prod{query}", **options)


@pytest.fixture
async def states(tmp_path: Path) -> AsyncIterator[States]:
    api = Api(tmp_path)
    yield States(api.http)
    await api.close()


async def test_a_state_is_kept_as_it_came(states: States) -> None:
    assert (await states("GET")).status_code == 404
    body = b'{"version": 4, "serial": 1}'
    md5 = base64.b64encode(hashlib.md5(body).digest()).decode()
    sent = await states("POST", content=body, headers=BASIC | {"content-md5": md5})
    assert sent.status_code == 200
    assert (await states("GET")).content == body
    assert (await states("DELETE")).status_code == 200
    assert (await states("GET")).status_code == 404


async def test_who_holds_the_lock_may_write_and_nobody_else(states: States) -> None:
    assert (await states("LOCK", json=LOCK)).status_code == 200
    assert (await states("LOCK", json=LOCK)).status_code == 200, "the first answer was lost"
    for other in (OTHER, OTHER | {"ID": LOCK["ID"]}):  # it was told the id
        refused = await states("LOCK", json=other)
        assert (refused.status_code, refused.json()) == (423, LOCK)
    for method, query in (("POST", "?ID=two"), ("POST", ""), ("DELETE", "")):
        answer = await states(method, query, content=b"{}")
        assert (answer.status_code, answer.json()) == (423, LOCK)
    assert (await states("POST", "?ID=one", content=b"{}")).status_code == 200
    assert (await states("UNLOCK", json=OTHER)).status_code == 423
    assert (await states("UNLOCK", json=LOCK)).status_code == 200
    assert (await states("UNLOCK", json=LOCK)).status_code == 200
    assert (await states("LOCK", json=OTHER)).status_code == 200


async def test_what_did_not_arrive_whole_is_refused(states: States) -> None:
    for body, more in ((b"{}", {"content-md5": "AAAA"}), (b"{", {}), (b"[]", {})):
        answer = await states("POST", content=body, headers=BASIC | more)
        assert answer.status_code == 400
    assert (await states("LOCK", content=b"{}")).status_code == 400
    assert (await states("GET")).status_code == 404


async def test_a_password_counts_for_states_only(states: States, tmp_path: Path) -> None:
    wrong = {"authorization": "Basic " + base64.b64encode(b"skerry:reader").decode()}
    assert (await states("GET", headers=wrong)).status_code == 403
    assert (await states("GET", headers={"authorization": "Basic %%"})).status_code == 401
    assert (await states("GET", "/../../../regions")).status_code == 401
