"""Tokens at rest, and the check that every route passes."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, Deployment

from skerry_edge.gate.principal import Principal
from skerry_edge.gate.token_file import TokenStoreError, new_account_id
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.money.caps import Budget, Caps
from skerry_regions.access import AccessRole, ScopeName
from skerry_regions.control.api.operations import OPERATIONS as CONTROL
from skerry_regions.control.api.requests import PREFIX

OTHER = "f" * 32


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "state" / "tokens.json")


def path_of(store: TokenStore) -> Path:
    return store._records._path


def test_a_token_authenticates_its_account(store: TokenStore) -> None:
    token, record = store.create(account_id=ACCOUNT, name="laptop", scopes=("run",), now=7)
    assert store.authenticate(token) == Principal(record.id, ACCOUNT, frozenset({"run"}))
    assert store.records() == [record]
    assert (record.name, record.created_at) == ("laptop", 7)


def test_the_file_holds_no_secret_and_only_its_owner_reads_it(store: TokenStore) -> None:
    token, record = store.create(account_id=ACCOUNT, now=0)
    text = path_of(store).read_text()
    assert token not in text
    assert token.split("_", 2)[2] not in text
    assert record.digest in text
    assert stat.S_IMODE(path_of(store).stat().st_mode) == 0o600


def test_wrong_tokens_are_nobodys(store: TokenStore) -> None:
    token, record = store.create(account_id=ACCOUNT, now=0)
    prefix, token_id, secret = token.split("_", 2)
    for wrong in (
        "",
        "_",
        "__",
        "wrong",
        secret,
        f"{prefix}_{token_id}_",
        f"{prefix}_{token_id}",
        f"{prefix}_{token_id}_{secret[:-1]}",
        f"{prefix}_{token_id}_{secret}x",
        f"{prefix}_{'0' * 16}_{secret}",
        f"other_{token_id}_{secret}",
        f"{prefix}_{token_id}_{record.digest}",
        f"{prefix}_{token_id}_{secret}" + "x" * 300,
        "skerry_\udcff_\udcff",
        "é" * 50,
    ):
        assert store.authenticate(wrong) is None, wrong


def test_revoking_works_at_once_in_every_process(store: TokenStore) -> None:
    kept, _ = store.create(account_id=ACCOUNT, now=0)
    gone, record = store.create(account_id=OTHER, now=0)
    edge = TokenStore(path_of(store))
    assert edge.authenticate(gone) is not None
    assert store.revoke(record.id)
    assert not store.revoke(record.id)
    assert edge.authenticate(gone) is None
    assert edge.authenticate(kept) is not None
    added, _ = store.create(account_id=OTHER, now=0)
    assert edge.authenticate(added) is not None
    path_of(store).unlink()
    assert edge.authenticate(kept) is None


def test_a_damaged_file_keeps_the_last_good_tokens_and_is_never_overwritten(
    store: TokenStore, caplog: pytest.LogCaptureFixture
) -> None:
    token, _ = store.create(account_id=ACCOUNT, now=0)
    path_of(store).write_bytes(b'{"version": 1, "tokens": [{}]}')
    assert store.authenticate(token) is not None
    assert "not a token file" in caplog.text
    with pytest.raises(TokenStoreError, match=r"tokens\.json is not a token file"):
        TokenStore(path_of(store))


def test_arguments_are_checked(store: TokenStore) -> None:
    for account in ("", "x" * 32, ACCOUNT.upper(), ACCOUNT + "0"):
        with pytest.raises(ValueError, match="32 lower-case hex"):
            store.create(account_id=account, now=0)
    with pytest.raises(ValueError, match="scopes are"):
        store.create(account_id=ACCOUNT, scopes=("run", "root"), now=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without a role and without a scope"):
        store.create(account_id=ACCOUNT, scopes=(), now=0)
    with pytest.raises(ValueError, match="a viewer reads"):
        store.create(account_id=ACCOUNT, role="viewer", scopes=("run",), now=0)
    assert len(new_account_id()) == 32


# --- over HTTP -----------------------------------------------------------------------------------


def assert_unauthenticated(reply: httpx.Response) -> None:
    assert reply.status_code == 401
    assert reply.headers["content-type"] == "application/json"
    assert [error["code"] for error in reply.json()["errors"]] == [10000]


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer wrong", "Basic {token}", "{token}", "Bearer {token}x"],
)
@pytest.mark.parametrize(
    "path",
    [
        f"/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}",
        f"/client/v4/accounts/{ACCOUNT}/ai/run/@cf/no/such",
        f"/client/v4/accounts/{ACCOUNT}/ai/v1/models",
        "/v1/models",
        "/no/such/route",
        "/",
        "/metrics",
        "/metrics/",
        "/healthz%2f..",
        "//metrics",
    ],
)
def test_every_route_denies_without_a_token(
    edge: Deployment, header: str | None, path: str
) -> None:
    headers = {} if header is None else {"authorization": header.format(token=edge.token)}
    with httpx.Client(base_url=f"http://127.0.0.1:{edge.port}", trust_env=False) as stranger:
        for method in ("GET", "POST", "DELETE"):
            assert_unauthenticated(stranger.request(method, path, headers=headers))


def test_two_credentials_are_no_credential(edge: Deployment) -> None:
    value = f"Bearer {edge.token}"
    headers = [("authorization", value), ("authorization", value)]
    assert_unauthenticated(httpx.get(f"http://127.0.0.1:{edge.port}/v1/models", headers=headers))


def test_the_host_header_decides_nothing(edge: Deployment) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{edge.port}", trust_env=False) as stranger:
        assert_unauthenticated(stranger.get("/v1/models", headers={"host": "healthz"}))
        assert stranger.get("/v1/models", headers={"host": "a/healthz?x="}).status_code == 400


def test_the_scheme_is_not_case_sensitive(edge: Deployment) -> None:
    headers = {"authorization": f"bearer  {edge.token}"}
    assert edge.client.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("account", [OTHER, "", "x", ACCOUNT.upper(), ACCOUNT[:-1], "é"])
def test_other_accounts_are_not_found(edge: Deployment, account: str) -> None:
    reply = edge.client.post(f"/client/v4/accounts/{account}/ai/run/{MODEL}", json={"prompt": "x"})
    assert reply.status_code == 404
    assert [error["code"] for error in reply.json()["errors"]] == [7003, 7000]
    assert edge.region.streams == []


def test_public_paths_need_no_token(edge: Deployment) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{edge.port}", trust_env=False) as stranger:
        assert stranger.get("/healthz").json() == {"status": "ok"}
        assert stranger.get("/readyz").json() == {"status": "ready", "models": [MODEL]}


@pytest.mark.parametrize(
    ("role", "scopes", "status"),
    [
        ("operator", (), 200),
        (None, ("metrics",), 200),
        ("developer", ("run", "read"), 403),
        ("viewer", ("read",), 403),
        (None, ("steer",), 403),  # of a DNS server, which may stand elsewhere
    ],
)
def test_what_all_tenants_ask_is_for_operators(
    edge: Deployment, role: AccessRole | None, scopes: tuple[ScopeName, ...], status: int
) -> None:
    edge.run(prompt="x")
    token, _ = edge.edge.tokens.create(account_id=ACCOUNT, role=role, scopes=scopes, now=0)
    headers = {"authorization": f"Bearer {token}"}
    reply = edge.client.get("/metrics", headers=headers)
    assert reply.status_code == edge.client.head("/metrics", headers=headers).status_code == status
    assert ("vllm:generation_tokens_total{" in reply.text) is (status == 200)
    if status == 403:
        assert [error["code"] for error in reply.json()["errors"]] == [3023]


def test_an_edge_has_no_route_of_the_control_plane(edge: Deployment) -> None:
    """Also for an operator: the platform is changed elsewhere, by a listener of its own."""
    token, _ = edge.edge.tokens.create(account_id=ACCOUNT, role="operator", now=0)
    headers = {"authorization": f"Bearer {token}"}
    walked = [each for each in CONTROL if each.path.startswith(PREFIX)]
    walked += [replace(walked[0], method="POST", path=path) for path in ("/drain", "/reload")]
    for each in walked:
        answer = edge.client.request(each.method, each.path, headers=headers)
        assert answer.status_code == 404, (each.method, each.path)
    assert len(walked) > 40


def test_scopes_are_enforced(edge: Deployment) -> None:
    tokens = edge.edge.tokens
    cases: list[tuple[AccessRole | None, tuple[ScopeName, ...], int, int]] = [
        (None, ("run",), 200, 403),
        (None, ("read",), 403, 200),
        ("operator", (), 403, 403),
    ]
    for role, scopes, run, read in cases:
        token, record = tokens.create(account_id=ACCOUNT, role=role, scopes=scopes, now=0)
        headers = {"authorization": f"Bearer {token}"}
        ran = edge.client.post(edge.run_path, json={"prompt": "x"}, headers=headers)
        listed = edge.client.get("/v1/models", headers=headers)
        assert (ran.status_code, listed.status_code) == (run, read)
        tokens.revoke(record.id)
        assert_unauthenticated(edge.client.get("/v1/models", headers=headers))


def test_tokens_are_stored_as_documented(store: TokenStore) -> None:
    store.create(account_id=ACCOUNT, now=5)
    stored = msgspec.json.decode(path_of(store).read_bytes())
    assert stored["version"] == 1
    assert set(stored["tokens"][0]) == {
        "id", "digest", "account_id", "name", "scopes", "created_at", "residency",
        "per_day", "per_month", "role", "models", "expires_at", "parent", "former_digest",
        "former_until",
    }  # fmt: skip


def test_caps_are_kept_and_change(store: TokenStore) -> None:
    token, record = store.create(account_id=ACCOUNT, caps=Caps(per_day=2.5), now=5)
    reader = TokenStore(path_of(store))
    principal = reader.authenticate(token)
    assert principal is not None
    assert principal.budgets == (Budget(record.id, Caps(per_day=2.5)),)
    assert store.set_caps(record.id, Caps(per_month=9.0))
    principal = reader.authenticate(token)
    assert principal is not None
    assert principal.budgets == (Budget(record.id, Caps(per_month=9.0)),)
    assert not store.set_caps("0" * 16, Caps())


def test_processes_that_change_the_file_at_once_lose_nothing(store: TokenStore) -> None:
    _, gone = store.create(account_id=ACCOUNT, now=5)
    stores = [TokenStore(path_of(store)) for _ in range(8)]
    with ThreadPoolExecutor(len(stores) + 1) as threads:
        creating = [threads.submit(each.create, account_id=ACCOUNT, now=5) for each in stores]
        revoking = threads.submit(store.revoke, gone.id)
        made = {future.result()[1].id for future in creating}
        assert revoking.result()
    assert {record.id for record in store.records()} == made


@pytest.mark.parametrize("dollars", [-0.01, float("nan"), float("inf"), 1e10])
def test_a_cap_is_a_sum_of_money(store: TokenStore, dollars: float) -> None:
    with pytest.raises(ValueError, match="a cap is between"):
        store.create(account_id=ACCOUNT, caps=Caps(per_day=dollars), now=5)


def test_a_token_is_live_until_it_is_revoked(store: TokenStore) -> None:
    reader = TokenStore(path_of(store))
    _, record = store.create(account_id=ACCOUNT, now=5)
    assert reader.is_live(record.id)
    store.revoke(record.id)
    assert not reader.is_live(record.id)


def test_who_keeps_a_token_again_changes_neither_its_zone_nor_its_caps(store: TokenStore) -> None:
    token, record = store.create(
        account_id=ACCOUNT, residency="eu", caps=Caps(per_day=2.5, per_month=9.0), now=5
    )
    store.keep(
        msgspec.structs.replace(
            record, name="new", scopes=("run",), residency=None, per_day=None, per_month=None
        )
    )
    assert store.records() == [msgspec.structs.replace(record, name="new", scopes=("run",))]
    principal = store.authenticate(token)
    assert principal is not None
    assert (principal.residency, principal.budgets) == ("eu", (Budget(record.id, record.caps),))
