"""Machines that join: tokens, certificates, what they may say, and being shut out."""

from __future__ import annotations

import contextlib
import sqlite3
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace
from tests.regions.control.joining import CLUSTER_KEY, POOL, Platform, platform
from tests.regions.control.support import MODEL, Tokens, new

from skerry_regions import control_link
from skerry_regions.control.authority import (
    MACHINE_SECONDS,
    SERVER_SECONDS,
    Authority,
    AuthorityError,
    ListenerTLS,
)
from skerry_regions.control.changes import Changes
from skerry_regions.control.errors import Invalid
from skerry_regions.control.joining import Joining
from skerry_regions.control.machines import RENEWABLE_SECONDS
from skerry_regions.control.resources import POOL as POOL_KIND
from skerry_regions.control.wanted import ModelState, wanted
from skerry_regions.control_link import ControlLink, ControlRefused, JoinError, join
from skerry_regions.drivers.https_registry import HttpsRegistry
from skerry_regions.machine_messages import (
    SERVER_NAME,
    Announcement,
    Credentials,
    EdgeAssignment,
    JoinRequest,
    NodeAssignment,
    Orders,
    Paused,
)
from skerry_regions.registry import Member, RegistryUnavailable

DAY = 86_400.0


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Platform]:
    with platform(tmp_path) as control:
        yield control


def describe(link: ControlLink, **values: Any) -> Member:
    return Member(id=link.machine, kind=link.kind, region="fra", state="ready", **values)


def announce(link: ControlLink, *, fingerprint: str = "", **values: Any) -> Orders:
    told = Announcement(
        member=replace(describe(link), **values), lease_seconds=3.0, fingerprint=fingerprint
    )
    return link.call("PUT", "/member", Orders, told)


# --- tokens --------------------------------------------------------------------------------------


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


# --- who is believed -----------------------------------------------------------------------------


def test_nothing_is_told_to_a_control_plane_that_the_token_does_not_name(
    control: Platform, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with platform(tmp_path / "other") as other:
        token = control.token()
        with pytest.raises(JoinError, match="is not the control plane that made the join token"):
            join(tmp_path / "m", other.url, token, kind="node")
    assert [each.uses for each in control.tokens.all()] == [0]


@pytest.mark.parametrize(
    "url", ["http://h:1", "https://", "https://h/path", "h:1", "https://h?x", "https://h:99999",
            "https://[::1", "https://user@h"],
)  # fmt: skip
def test_what_is_no_url_of_a_control_plane(tmp_path: Path, url: str) -> None:
    with pytest.raises(JoinError, match=r"is not https://HOST:PORT"):
        join(tmp_path, url, f"skjoin_{'0' * 16}_{'0' * 64}_{'A' * 43}", kind="node")


@pytest.mark.parametrize("path", ["/members", "/assignment", "/credentials", "/nowhere"])
def test_without_a_certificate_nothing_is_told(control: Platform, path: str) -> None:
    answer = httpx.get(
        f"{control.url}/machines/v1{path}", verify=False, headers={"skerry-versions": "1"}
    )
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "unauthorized")


def test_a_certificate_of_another_authority_is_refused(control: Platform, tmp_path: Path) -> None:
    link = control.joined("m")
    (tmp_path / "other").mkdir()
    with platform(tmp_path / "other") as other:
        foreign = other.joined("m")
        foreign.close()
        certificate = tmp_path / "other" / "m" / "certificate.pem"
        key = tmp_path / "other" / "m" / "key.pem"
    link.close()
    for name, source in (("certificate.pem", certificate), ("key.pem", key)):
        (tmp_path / "m" / name).write_bytes(source.read_bytes())
    forged = ControlLink(tmp_path / "m")
    with pytest.raises(control_link.ControlAway):  # however its system tells of the alert
        forged.assignment()
    forged.close()


def test_a_machine_of_other_versions_is_told_both(control: Platform) -> None:
    answer = httpx.get(
        f"{control.url}/machines/v1/members", verify=False, headers={"skerry-versions": "7,8"}
    )
    assert answer.status_code == 426
    error = answer.json()["error"]
    assert error["type"] == "version_mismatch"
    assert "speaks the protocol versions 7,8, the control plane" in error["message"]
    assert error["message"].endswith(" 1: update the older of the two")


def test_the_authoritys_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "authority.pem"
    made = Authority.open(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Authority.open(path).fingerprint == made.fingerprint
    path.chmod(0o640)
    with pytest.raises(AuthorityError, match="chmod 600"):
        Authority.open(path)
    path.chmod(0o600)
    path.write_text("nothing")
    with pytest.raises(AuthorityError, match="is damaged"):
        Authority.open(path)


# --- certificates --------------------------------------------------------------------------------


def test_a_certificate_is_renewed_when_half_its_time_is_over(control: Platform) -> None:
    link = control.joined("m")
    first = control.machines.get(link.machine).not_after
    control.clock.now += MACHINE_SECONDS / 2 - 60
    link.assignment()
    assert control.machines.get(link.machine).not_after == first
    control.clock.now += 61
    link.assignment()
    assert control.machines.get(link.machine).not_after > first + MACHINE_SECONDS / 2 - 60
    link.close()


def test_a_machine_that_was_away_for_long_renews_first(control: Platform) -> None:
    link = control.joined("m")
    control.clock.now += MACHINE_SECONDS + 7 * DAY
    assert isinstance(link.assignment(), NodeAssignment)
    link.close()


def test_a_certificate_that_has_ended_serves_for_nothing_else(control: Platform) -> None:
    link = control.joined("m")
    control.clock.now += MACHINE_SECONDS + 1
    link._not_before = float("inf")  # its renewals fail
    with pytest.raises(ControlRefused, match="has ended: renew it"):
        link.assignment()
    control.clock.now += RENEWABLE_SECONDS
    with pytest.raises(ControlRefused, match="join again"):
        link.renew()
    link.close()


def test_the_listener_renews_its_own_certificate(control: Platform) -> None:
    tls = ListenerTLS(control.authority, control.clock)
    first = shown(tls)
    assert shown(tls) == first
    control.clock.now += SERVER_SECONDS / 2
    assert shown(tls) != first


def shown(tls: ListenerTLS) -> bytes | None:
    """The certificate that a client is shown."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = anybody.wrap_bio(to_client, to_server, server_hostname=SERVER_NAME)
    server = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert(binary_form=True)


def test_a_machine_that_cannot_come_back_is_forgotten(control: Platform) -> None:
    def join_now() -> str:
        csr = control_link._request(ec.generate_private_key(ec.SECP256R1()))
        request = JoinRequest(token=control.token(), csr=csr, kind="node")
        return control.machines.join(request)[0].id

    join_now()
    control.clock.now += MACHINE_SECONDS + RENEWABLE_SECONDS + 1
    assert [join_now()] == [machine.id for machine in control.machines.all()]


# --- the registry --------------------------------------------------------------------------------


def test_a_machine_speaks_for_itself_alone_and_decides_not_on_its_place(
    control: Platform,
) -> None:
    link = control.joined("m")
    announce(link, region="iad", residency="us", role="prefill", address="tcp:10.0.0.7:8790")
    [member] = control.registry.members()
    assert (member.region, member.residency, member.role) == ("fra", "eu", "decode")
    for wrong in ({"id": "edge-1"}, {"kind": "edge"}):
        with pytest.raises(ControlRefused, match="cannot speak for"):
            announce(link, **wrong)
    with pytest.raises(ControlRefused, match="cannot reach a unix socket"):
        announce(link, address="unix:/run/skerry.sock")
    with pytest.raises(RegistryUnavailable, match="cannot speak for 'edge-1'"):
        HttpsRegistry(link).withdraw("edge-1", 1)
    link.close()


def test_sockets_of_the_control_planes_machine_are_not_told(control: Platform) -> None:
    node = Member(id="n", kind="node", region="fra", address="unix:/run/n.sock")
    edge = Member(id="e", kind="edge", region="fra", address="http://h:1", gateway="unix:/g")
    for member in (node, edge):
        control.registry.announce(member)
    link = control.joined("m")
    assert HttpsRegistry(link).members() == [replace(edge, gateway="")]
    link.close()


def test_a_revoked_machine_is_refused_and_edges_are_told(control: Platform) -> None:
    link, other = control.joined("m"), control.joined("o")
    announce(link, address="tcp:10.0.0.7:8790")
    joining = Joining(
        tokens=control.tokens,
        machines=control.machines,
        joined=control.joined_machines,
        registry=control.registry,
    )
    joining.revoke(link.machine, actor="test")
    refused = "was revoked; let it join again with a new token"
    for call in (link.assignment, link.renew, lambda: announce(link)):
        with pytest.raises(ControlRefused, match=refused):
            call()
    for registry in (HttpsRegistry(other), control.registry):
        [told] = registry.members()
        assert (told.id, told.state, told.address) == (link.machine, "revoked", "")
    assert control.joined_machines.running(control.registry.members()) == []
    for each in (link, other):
        each.close()


# --- what to run ---------------------------------------------------------------------------------


def changed(control: Platform, **values: Any) -> str:
    """Change the pool; the fingerprint of what is wanted then."""
    changes = Changes(control.store, Tokens(), b"s" * 32)
    changes.update(POOL_KIND, POOL, values, actor="test", if_match=None)
    control.look()
    machine = control.machines.all()[0]
    assignment = control.joined_machines.assignment(machine)
    assert isinstance(assignment, NodeAssignment)
    return assignment.fingerprint


def test_a_machine_is_told_what_its_pool_is(control: Platform) -> None:
    link = control.joined("m")
    assignment = link.assignment()
    assert isinstance(assignment, NodeAssignment)
    settings = assignment.settings
    assert (settings.region, settings.residency, settings.role, settings.model) == (
        "fra", "eu", "decode", MODEL,
    )  # fmt: skip
    link.close()
    kept = ControlLink(control.folder / "m")
    assert kept.last_assignment == assignment, "it may start without the control plane"
    kept.close()


def test_one_machine_at_a_time_begins_anew(control: Platform) -> None:
    links = [control.joined(name) for name in ("a", "b", "c")]
    first = changed(control, kv_blocks=64)
    for link in links:
        assert announce(link, fingerprint=first).order == "serve"
    second = changed(control, kv_blocks=128)
    assert [announce(link, fingerprint=first).order for link in links] == [
        "renew", "serve", "serve",
    ]  # fmt: skip
    announce(links[0], fingerprint=first, state="draining")
    HttpsRegistry(links[0]).withdraw(links[0].machine, 1)
    assert announce(links[1], fingerprint=first).order == "serve"
    announce(links[0], fingerprint=second, state="starting")
    assert announce(links[1], fingerprint=first).order == "serve"
    announce(links[0], fingerprint=second)
    assert announce(links[1], fingerprint=first).order == "renew"
    for link in links:
        link.close()


def test_a_machine_that_was_switched_off_is_not_waited_for(control: Platform) -> None:
    links = [control.joined(name) for name in ("a", "b")]
    first = changed(control, kv_blocks=64)
    announce(links[0], fingerprint=first)
    announce(links[0], fingerprint=first, state="draining")
    HttpsRegistry(links[0]).withdraw(links[0].machine, 1)
    changed(control, kv_blocks=128)
    assert announce(links[1], fingerprint=first).order == "renew"
    for link in links:
        link.close()


def test_a_pool_that_goes_pauses_its_machines(control: Platform) -> None:
    link = control.joined("m")
    fingerprint = changed(control, kv_blocks=64)
    announce(link, fingerprint=fingerprint)
    changes = Changes(control.store, Tokens(), b"s" * 32)
    changes.delete(POOL_KIND, POOL, actor="test", if_match=None)
    control.look()
    assert announce(link, fingerprint=fingerprint).order == "renew"
    assert link.assignment() == Paused(reason=f"the pool {POOL!r} is being deleted")
    link.close()


def test_a_model_that_cannot_be_had_leaves_what_runs(control: Platform) -> None:
    link = control.joined("m")
    fingerprint = changed(control, kv_blocks=64)
    groups = wanted(control.store.desired, lambda name: ModelState(id="", blocked="no such model"))
    control.groups = groups
    assert announce(link, fingerprint=fingerprint).order == "serve"
    assert link.assignment() == Paused(reason="no such model")
    link.close()


def test_before_the_first_look_a_machine_waits(control: Platform) -> None:
    link = control.joined("m")
    control.groups = None
    with pytest.raises(control_link.ControlAway, match="has just started"):
        link.assignment()
    assert announce(link, fingerprint="old").order == "serve"
    link.close()


def test_an_edge_is_told_its_models_and_shares_credentials(control: Platform) -> None:
    folder = control.folder / "edge"
    join(folder, control.url, control.token(region="fra"), kind="edge")
    link = ControlLink(folder)
    assignment = link.assignment()
    assert isinstance(assignment, EdgeAssignment)
    assert (assignment.region, assignment.residency, assignment.models) == ("fra", "eu", (MODEL,))
    told = link.call("GET", "/credentials", Credentials)
    assert (told.secret, told.tokens) == (b"r" * 32, b"{}")
    assert link.call("GET", f"/credentials?known={told.digest}", Credentials).tokens is None
    link.close()
    node = control.joined("m")
    with pytest.raises(ControlRefused, match="credentials are for edges"):
        node.call("GET", "/credentials", Credentials)
    node.close()
