"""Children of tokens, their ends, their secrets, and the tokens of earlier versions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.clock import Clock
from tests.edge.gate.shared_tokens import shared_tokens
from tests.edge.scripted_region import MODEL
from tests.edge.support import ACCOUNT, ALIAS, Deployment
from tests.regions.drivers.nats_server import NatsCluster

from skerry_edge.gate.token_file import digest_of, new_secret, token_text
from skerry_edge.gate.tokens import FORGET_SECONDS, TokenStore
from skerry_edge.money.caps import Budget, Caps
from skerry_regions.access import MAX_ANCESTORS

OTHER = "f" * 32


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000_000.0)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path_factory.mktemp("nats"), size=1)
    yield cluster
    cluster.stop()


@pytest.fixture(params=["file", "nats"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, servers: NatsCluster
) -> Iterator[TokenStore]:
    """Of either driver: a file of the home, and NATS servers with pictures in files."""
    if request.param == "file":
        yield TokenStore(tmp_path / "tokens.json", clock=clock)
        return
    with shared_tokens(servers, tmp_path, clock) as homes:
        yield homes.join("one")


def test_a_child_has_the_bounds_of_its_ancestors(store: TokenStore) -> None:
    _, root = store.create(
        account_id=ACCOUNT, role="developer", caps=Caps(per_day=5.0), residency="eu",
        models=("@cf/meta/*",), expires_at=2_000_000, now=1,
    )  # fmt: skip
    _, middle = store.create(account_id=ACCOUNT, role="developer", parent=root.id, now=1)
    token, leaf = store.create(
        account_id=ACCOUNT, caps=Caps(per_month=2.0), models=("@cf/meta/a",), parent=middle.id,
        scopes=("run",), now=1,
    )  # fmt: skip
    found = store.authenticate(token)
    assert found is not None
    assert (found.residency, found.expires_at, found.role) == ("eu", 2_000_000, None)
    assert found.models == (("@cf/meta/a",), ("@cf/meta/*",))
    assert found.budgets == (
        Budget(leaf.id, Caps(per_month=2.0)),
        Budget(root.id, Caps(per_day=5.0), "ancestor"),
    )


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"role": "operator"}, "the role operator is above"),
        ({"scopes": ("run", "read")}, "lacks the scope 'read'"),
        ({"residency": "us"}, "bound to the zone 'eu'"),
        ({"models": ("@cf/other/x",)}, "may not run '@cf/other/x'"),
        ({"models": ("*",)}, r"may not run '\*'"),
        ({"caps": Caps(per_day=6.0)}, r"may spend US\$ 5 per day"),
        ({"expires_at": 2_000_001}, "ends before that"),
        ({"account_id": OTHER}, "no token .* of this account"),
    ],
)
def test_nothing_is_made_beyond_its_parent(
    store: TokenStore, asked: dict[str, object], why: str
) -> None:
    _, parent = store.create(
        account_id=ACCOUNT, role="developer", scopes=("run",), residency="eu",
        caps=Caps(per_day=5.0), models=("@cf/meta/*",), expires_at=2_000_000, now=1,
    )  # fmt: skip
    values: dict[str, object] = {"account_id": ACCOUNT, "scopes": ("run",)} | asked
    with pytest.raises(ValueError, match=why):
        store.create(**values, parent=parent.id, now=1)  # type: ignore[arg-type]
    assert store.records() == [parent]


def test_revoking_a_parent_revokes_its_children(store: TokenStore) -> None:
    kept, _ = store.create(account_id=ACCOUNT, now=1)
    _, parent = store.create(account_id=ACCOUNT, now=1)
    child, record = store.create(account_id=ACCOUNT, parent=parent.id, now=1)
    grandchild, _ = store.create(account_id=ACCOUNT, parent=record.id, now=1)
    assert store.revoke(parent.id) == 3
    assert store.authenticate(kept) is not None
    assert store.authenticate(child) is None
    assert store.authenticate(grandchild) is None
    assert len(store.records()) == 1


def test_ancestors_are_bounded(store: TokenStore) -> None:
    token, record = store.create(account_id=ACCOUNT, now=1)
    parent = record.id
    for _ in range(MAX_ANCESTORS):
        token, record = store.create(account_id=ACCOUNT, parent=parent, now=1)
        parent = record.id
    assert store.authenticate(token) is not None
    with pytest.raises(ValueError, match="at most 8 ancestors"):
        store.create(account_id=ACCOUNT, parent=parent, now=1)


def test_a_token_and_what_was_made_with_it_end_in_time(store: TokenStore, clock: Clock) -> None:
    token, parent = store.create(account_id=ACCOUNT, expires_at=1_000_010, now=1)
    child, record = store.create(account_id=ACCOUNT, parent=parent.id, now=1)
    clock.now = 1_000_009.9
    assert store.authenticate(token) is not None
    assert store.is_live(record.id)
    clock.now = 1_000_010.0
    assert store.authenticate(token) is None
    assert store.authenticate(child) is None
    assert not store.is_live(record.id)
    clock.now += FORGET_SECONDS
    store.keep(msgspec.structs.replace(record, parent=None))
    assert [each.id for each in store.records()] == [record.id]


def test_another_secret_keeps_everything_else(store: TokenStore, clock: Clock) -> None:
    token, record = store.create(account_id=ACCOUNT, caps=Caps(per_day=1.0), now=1)
    child, _ = store.create(account_id=ACCOUNT, parent=record.id, now=1)
    secret = new_secret()
    assert store.rotate(record.id, digest_of(secret))
    assert store.authenticate(token) is None
    found = store.authenticate(token_text(record.id, secret))
    assert found is not None
    assert (found.token_id, found.budgets) == (record.id, (Budget(record.id, Caps(per_day=1.0)),))
    assert store.authenticate(child) is not None

    third = new_secret()
    assert store.rotate(record.id, digest_of(third), grace_seconds=60)
    assert store.authenticate(token_text(record.id, secret)) is not None
    clock.now += 60
    assert store.authenticate(token_text(record.id, secret)) is None
    assert store.authenticate(token_text(record.id, third)) is not None
    assert not store.rotate("0" * 16, digest_of(third))


def test_the_scope_admin_of_earlier_versions_becomes_a_role(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(  # as version 0.1 wrote it
        msgspec.json.encode(
            {
                "version": 1,
                "tokens": [
                    {"id": f"{number:016x}", "digest": digest_of("s"), "account_id": account,
                     "name": "", "scopes": scopes, "residency": None, "created_at": 1,
                     "per_day": None, "per_month": None}
                    for number, (account, scopes) in enumerate(
                        [(ACCOUNT, ["run", "read", "admin"]), (OTHER, ["run", "read", "admin"]),
                         (OTHER, ["admin"]), (OTHER, ["run"])]
                    )
                ],
            }
        ).decode()
    )  # fmt: skip
    store = TokenStore(path)
    before = [store.authenticate(token_text(f"{number:016x}", "s")) for number in range(4)]
    assert [each and each.role for each in before] == ["developer", "developer", "developer", None]
    assert store.give_roles(ACCOUNT) == 3
    after = [store.authenticate(token_text(f"{number:016x}", "s")) for number in range(4)]
    assert [each and (each.role, set(each.scopes)) for each in after] == [
        ("operator", {"run", "read", "operator"}),
        ("developer", {"run", "read", "developer"}),
        ("developer", {"developer"}),
        (None, {"run"}),
    ]
    assert b"admin" not in path.read_bytes()
    assert store.give_roles(ACCOUNT) == 0


# --- over HTTP -----------------------------------------------------------------------------------


def test_a_token_runs_the_models_that_it_was_given(edge: Deployment) -> None:
    tokens = edge.edge.tokens
    for models, status in (
        ((MODEL,), 200), ((ALIAS,), 200), (("@cf/test/*",), 200), (("@cf/o/*", "x"), 403),
    ):  # fmt: skip
        token, _ = tokens.create(account_id=ACCOUNT, models=models, now=0)
        headers = {"authorization": f"Bearer {token}"}
        for path in (edge.run_path, edge.run_path.replace(MODEL, ALIAS)):
            ran = edge.client.post(path, json={"prompt": "x"}, headers=headers)
            assert ran.status_code == status, (models, path)
        listed = edge.client.get("/v1/models", headers=headers).json()["data"]
        assert bool(listed) == (status == 200), models
        assert edge.client.get(f"/v1/models/{MODEL}", headers=headers).status_code == status
    assert ran.json()["errors"][0]["message"].endswith(f"may not run the model {MODEL}.")


def test_no_route_runs_a_model_that_a_token_was_not_given(edge: Deployment) -> None:
    token, _ = edge.edge.tokens.create(account_id=ACCOUNT, models=("@cf/o/*",), now=0)
    headers = {"authorization": f"Bearer {token}"}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    for path, body in {
        edge.run_path: {"prompt": "x"},
        f"{edge.run_path}?queueRequest=true": {"requests": [{"prompt": "x"}]},
        f"/client/v4/accounts/{ACCOUNT}/ai/v1/chat/completions": chat,
        "/v1/chat/completions": chat,
        "/v1/completions": {"model": MODEL, "prompt": "x"},
        "/v1/responses": {"model": MODEL, "input": "x"},
        "/v1/messages": chat,
        "/v1/messages/count_tokens": chat,
        "/v1/responses/input_tokens": {"model": MODEL, "input": "x"},
    }.items():
        refused = edge.client.post(path, json=body, headers=headers)
        assert refused.status_code == 403, (path, refused.text)
    assert edge.region.submits == []


def test_an_exceptions_text_never_reaches_a_client(
    edge: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("the secret of another tenant")

    monkeypatch.setattr(TokenStore, "authenticate", broken)
    answer = edge.client.get("/v1/models")
    assert answer.status_code == 500
    assert "secret of another" not in answer.text
    assert answer.headers["x-request-id"] in caplog.text, "the log has it, under the answer's id"
    assert "secret of another" in caplog.text
