"""The console of a control plane over HTTP: its own logins, and its API as a session may use it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.edge.support import EDGE
from tests.regions.control.support import ACCOUNT, NODE, Api

from skerry_cli.home.edge_tokens import caller_of
from skerry_edge.console.codes import CONTROL_PLANE, new_code
from skerry_edge.console.control_console import ControlConsole
from skerry_edge.gate.tokens import TokenStore
from skerry_regions.access import AccessRole
from skerry_regions.control.api.access import INSIDE
from skerry_regions.control.api.app import create_app
from skerry_regions.spec_types import ConsoleMode

pytestmark = pytest.mark.anyio

KEY = b"k" * 32
BASE = "http://127.0.0.1:8788"
OWN = {"x-skerry-console": "1"}
API = "/console/api/control/v1"


class Browsed:
    """A control plane, its tokens, and a browser on its machine."""

    def __init__(self, folder: Path, mode: ConsoleMode = "loopback") -> None:
        self.api = Api(folder)
        self.edge_url = ""
        self.tokens = TokenStore(folder / "tokens.json")
        app = create_app(self.api.control)
        console = ControlConsole(
            app, tokens=self.tokens, logins=None, key=KEY,
            caller_of=lambda principal: caller_of(principal, ACCOUNT), mode=mode,
            hosts=frozenset({"control"}), edge_url=lambda: self.edge_url,
        )  # fmt: skip
        transport = httpx.ASGITransport(console, client=("127.0.0.1", 4711))
        self.http = httpx.AsyncClient(transport=transport, base_url=BASE, headers=OWN)

    def token(self, role: AccessRole | None, account: str = ACCOUNT) -> tuple[str, str]:
        token, record = self.tokens.create(account_id=account, role=role, now=0)
        return token, record.id

    async def log_in(self, role: AccessRole | None, account: str = ACCOUNT) -> str:
        """The token's id."""
        token, id = self.token(role, account)
        reply = await self.http.post("/console/login", json={"token": token})
        assert reply.status_code == 200, reply.text
        return id

    async def close(self) -> None:
        await self.http.aclose()
        await self.api.close()


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[Browsed]:
    made = Browsed(tmp_path)
    await made.api.make("regions", name="fra", iata="FRA")
    yield made
    await made.close()


async def test_the_root_leads_to_the_shell_and_the_api_is_as_ever(control: Browsed) -> None:
    root = await control.http.get("/")
    assert (root.status_code, root.headers["location"]) == (307, "/console/")
    assert b"Skerry" in (await control.http.get("/console/control")).content
    assert (await control.http.get("/healthz")).json() == {"status": "ok"}
    assert (await control.http.get("/control/v1/regions")).status_code == 401


async def test_a_session_reads_what_its_token_may(control: Browsed) -> None:
    await control.log_in("viewer")
    told = (await control.http.get("/console/session")).json()
    assert (told["site"], told["role"]) == ("control", "viewer")
    assert told["rights"] == ["list", "observe"]
    [region] = (await control.http.get(f"{API}/regions")).json()["items"]
    assert region["id"] == "fra"


async def test_it_leads_to_an_edge_where_the_address_means_the_same(tmp_path: Path) -> None:
    control = Browsed(tmp_path, "on")
    token, _ = control.token("viewer")
    for url, host, told in (
        ("", "127.0.0.1", ""),
        ("http://127.0.0.1:8787", "127.0.0.1:8788", "http://127.0.0.1:8787"),
        ("http://[::1]:8787", "localhost:8788", "http://[::1]:8787"),
        ("http://127.0.0.1:8787", "control", ""),
        ("https://ai.example.com", "control", "https://ai.example.com"),
    ):
        control.edge_url = url
        reply = await control.http.post(
            "/console/login", json={"token": token}, headers={"host": host}
        )
        assert reply.json()["elsewhere"] == told, (url, host)
    token, _ = control.token("viewer", "f" * 32)
    assert (await control.http.post("/console/login", json={"token": token})).json()["elsewhere"]
    token, _ = control.token(None)
    told = (await control.http.post("/console/login", json={"token": token})).json()
    assert told["elsewhere"] == ""
    await control.close()


async def test_what_an_operator_changes_is_noted_as_theirs(control: Browsed) -> None:
    id = await control.log_in("operator")
    browser = {"origin": BASE, "sec-fetch-site": "same-origin"}  # as browsers add
    reply = await control.http.patch(f"{API}/regions/fra", json={"draining": True}, headers=browser)
    assert reply.status_code == 200, reply.text
    reply = await control.http.post(f"{API}/nodes/{NODE.id}/drain", headers=browser)
    assert (reply.status_code, reply.json()["streams"]) == (202, 3)
    assert control.api.seer.drained == [NODE.id]
    lines = (await control.http.get(f"{API}/audit?newest=1")).json()["items"]
    done = [(each["actor"], each["action"], each["kind"], each["id"]) for each in lines[-2:]]
    assert done == [(id, "update", "region", "fra"), (id, "drain", "node", NODE.id)]
    assert (await control.http.post(f"{API}/nodes/no/drain")).status_code == 404


@pytest.mark.parametrize("role", ["viewer", "developer", None])
async def test_who_does_not_operate_drains_nothing(
    control: Browsed, role: AccessRole | None
) -> None:
    await control.log_in(role)
    for method, path in (("PATCH", "/regions/fra"), ("POST", f"/nodes/{NODE.id}/drain")):
        reply = await control.http.request(method, f"{API}{path}", json={"draining": True})
        assert reply.status_code == 403, path
    assert control.api.seer.drained == []
    assert control.api.store.desired.revision == 1


async def test_another_accounts_operator_is_none_here(control: Browsed) -> None:
    await control.log_in("operator", "f" * 32)
    assert (await control.http.get(f"{API}/regions")).status_code == 403


@pytest.mark.parametrize(
    "fields",
    [
        {"x-skerry-console": ""},
        {"origin": "https://page.example"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_no_other_page_changes_anything(control: Browsed, fields: dict[str, str]) -> None:
    await control.log_in("operator")
    path = f"{API}/nodes/{NODE.id}/drain"
    assert (await control.http.post(path, headers=fields)).status_code == 403
    assert control.api.seer.drained == []


async def test_the_api_takes_no_cookie_and_no_header_makes_a_caller(control: Browsed) -> None:
    await control.log_in("operator")
    forged = {INSIDE: "operator"}
    assert (await control.http.get("/control/v1/regions", headers=forged)).status_code == 401


async def test_a_code_logs_in_once_and_an_edges_never(control: Browsed) -> None:
    _, id = control.token("operator")
    now = time.time()
    for void in (new_code(KEY, EDGE, id, now), new_code(b"s" * 32, CONTROL_PLANE, id, now)):
        assert (await control.http.post("/console/login", json={"code": void})).status_code == 401
    code = new_code(KEY, CONTROL_PLANE, id, now)
    for status in (200, 401):
        reply = await control.http.post("/console/login", json={"code": code})
        assert reply.status_code == status


async def test_a_revoked_token_ends_its_session(control: Browsed) -> None:
    id = await control.log_in("operator")
    control.tokens.revoke(id)
    assert (await control.http.get(f"{API}/regions")).status_code == 401


@pytest.mark.parametrize("fields", [{"host": "control"}, {"x-forwarded-for": "192.0.2.1"}])
async def test_on_loopback_it_is_for_this_machine_alone(
    control: Browsed, fields: dict[str, str]
) -> None:
    assert (await control.http.get("/console/", headers=fields)).status_code == 401
