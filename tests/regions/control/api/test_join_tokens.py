"""Join tokens: who may join with one, and how often."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.regions.control.joining import CLUSTER_KEY, POOL, Platform, platform
from tests.regions.control.support import MODEL, new

from skerry_regions.control.errors import Invalid, Unauthorized
from skerry_regions.control.machines import link as control_link
from skerry_regions.control.machines.folder import JoinError, certificate_request
from skerry_regions.control.machines.host import view
from skerry_regions.control.machines.link import join
from skerry_regions.control.machines.messages import JoinRequest


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Platform]:
    with platform(tmp_path) as control:
        yield control


def test_a_machine_joins_and_keeps_what_it_got(control: Platform, tmp_path: Path) -> None:
    folder = tmp_path / "machine"
    kept: list[bytes] = []
    joined = join(
        folder, control.url, control.token(), kind="node",
        keep=lambda joined: kept.append(joined.cluster_key),
    )  # fmt: skip
    assert kept == [CLUSTER_KEY]
    assert joined.machine.startswith("fra-decode-")
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert modes == dict.fromkeys(
        ("authority.pem", "certificate.pem", "key.pem", "machine.json"), 0o600
    )
    [machine] = control.machines.all()
    assert (machine.id, machine.kind, machine.pool, machine.region) == (
        joined.machine, "node", POOL, "fra",
    )  # fmt: skip


def test_a_token_is_stored_hashed_and_told_once(control: Platform, tmp_path: Path) -> None:
    text = control.token()
    _, id, fingerprint, secret = text.split("_", 3)
    assert fingerprint == control.authority.fingerprint
    with contextlib.closing(sqlite3.connect(tmp_path / "control.db")) as database:
        dump = "\n".join(database.iterdump())
    assert id in dump
    assert secret not in dump
    assert control.tokens.get(id).secret is msgspec.UNSET


def test_a_token_lets_as_many_join_as_it_says(control: Platform, tmp_path: Path) -> None:
    token = control.token(pool=POOL, max_uses=2)
    for name in ("a", "b"):
        join(tmp_path / name, control.url, token, kind="node")
    with pytest.raises(JoinError, match=r"refuses: The join token is used up"):
        join(tmp_path / "c", control.url, token, kind="node")
    assert [(each.uses, each.is_usable) for each in control.tokens.all()] == [(2, False)]


def test_machines_that_come_at_once_get_no_more_than_its_uses(control: Platform) -> None:
    token = control.token(pool=POOL, max_uses=3)

    def attempt(_: int) -> bool:
        try:
            control.machines.join(request_of(token))
        except Unauthorized:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(16))) == 3
    assert len(control.machines.all()) == 3
    assert [each.uses for each in control.tokens.all()] == [3]


def request_of(token: str, *, hostname: str = "", version: str = "") -> JoinRequest:
    csr = certificate_request(ec.generate_private_key(ec.SECP256R1()))
    return JoinRequest(token=token, csr=csr, kind="node", hostname=hostname, version=version)


def test_a_revoked_machine_does_not_come_back_with_what_is_left_of_its_token(
    control: Platform, tmp_path: Path
) -> None:
    token = control.token(pool=POOL, max_uses=2)
    machine = join(tmp_path / "m", control.url, token, kind="node").machine
    revoked = control.machines.revoke(machine, actor="test")
    assert view(revoked).join_token == token.split("_")[1]
    with pytest.raises(JoinError, match="was revoked; let it join again with a new token"):
        join(tmp_path / "m", control.url, token, kind="node")
    assert [each.uses for each in control.tokens.all()] == [1]


def test_what_a_machine_calls_itself_moves_no_cursor(control: Platform) -> None:
    request = request_of(control.token(), hostname="h\x1b[2J", version="1\r\n")
    machine, _ = control.machines.join(request)
    assert (machine.hostname, machine.version) == ("h?[2J", "1??")


def test_a_machine_that_lost_the_answer_asks_again(control: Platform, tmp_path: Path) -> None:
    token = control.token()

    def power_cut(joined: object) -> None:
        raise OSError(28, "No space left on device", "cluster.key")

    with pytest.raises(JoinError, match=r"cluster\.key: No space left"):
        join(tmp_path / "m", control.url, token, kind="node", keep=power_cut)
    assert not control_link.has_joined(tmp_path / "m")
    again = join(tmp_path / "m", control.url, token, kind="node")
    assert [machine.id for machine in control.machines.all()] == [again.machine]


def test_a_token_expires(control: Platform, tmp_path: Path) -> None:
    token = control.token(pool=POOL, expires_in_seconds=60)
    control.clock.now += 60
    with pytest.raises(JoinError, match="The join token has expired"):
        join(tmp_path / "m", control.url, token, kind="node")


def test_a_deleted_or_made_up_token_lets_nobody_join(control: Platform, tmp_path: Path) -> None:
    token = control.token()
    id = token.split("_")[1]
    made_up = token[:-1] + ("A" if token[-1] != "A" else "B")
    with pytest.raises(JoinError, match="The join token is wrong"):
        join(tmp_path / "m", control.url, made_up, kind="node")
    control.tokens.delete(id, actor="test")
    with pytest.raises(JoinError, match="The join token is wrong, or was deleted"):
        join(tmp_path / "m", control.url, token, kind="node")
    with pytest.raises(JoinError, match="a join token looks like skjoin_"):
        join(tmp_path / "m", control.url, "secret", kind="node")


@pytest.mark.parametrize(
    ("scope", "kind", "pool", "refusal"),
    [
        ({"pool": POOL}, "node", "fra-other", "not for a pool 'fra-other'"),
        ({"pool": POOL}, "edge", "", "not for an edge"),
        ({"region": "fra"}, "node", "", "name a pool that the join token is for: fra-decode, fra-"),
        ({"region": "fra", "roles": ["prefill"]}, "node", POOL, "not for a pool 'fra-decode'"),
        ({"region": "fra", "roles": ["decode"]}, "edge", "", "not for an edge"),
        ({"region": "fra"}, "edge", POOL, "an edge joins a region"),
    ],
)
def test_a_token_is_for_its_pool_or_region_only(
    control: Platform, tmp_path: Path, scope: dict[str, Any], kind: Any, pool: str, refusal: str
) -> None:
    new(control.store, "pools", name="pre", region="fra", role="prefill", model=MODEL)
    with pytest.raises(JoinError, match=refusal):
        join(tmp_path / "m", control.url, control.token(**scope), kind=kind, pool=pool)
    assert control.machines.all() == []
    assert [each.uses for each in control.tokens.all()] == [0]


def test_a_region_and_a_role_leave_one_pool(control: Platform, tmp_path: Path) -> None:
    new(control.store, "pools", name="pre", region="fra", role="prefill", model=MODEL)
    token = control.token(region="fra", roles=["decode", "edge"])
    assert join(tmp_path / "m", control.url, token, kind="node").machine.startswith(POOL)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, "pool"),
        ({"pool": POOL, "region": "fra"}, "pool"),
        ({"pool": "fra-no"}, "pool"),
        ({"region": "iad"}, "region"),
        ({"pool": POOL, "roles": ["decode"]}, "roles"),
        ({"region": "fra", "roles": ["king"]}, "roles[0]"),
        ({"pool": POOL, "max_uses": 0}, "max_uses"),
        ({"pool": POOL, "expires_in_seconds": 1e9}, "expires_in_seconds"),
    ],
)
def test_a_mistake_in_a_token_is_told_with_its_field(
    control: Platform, values: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        control.tokens.create(values, actor="test", idempotency_key=None)
    assert caught.value.field == field


def test_the_same_request_gets_the_same_token(control: Platform) -> None:
    made = [
        control.tokens.create({"pool": POOL}, actor="a", idempotency_key=key)
        for key in ("one", "one", "two")
    ]
    assert made[0] == made[1] != made[2]
