"""Machines and the control plane: who believes whom, and how long."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from tests.regions.control.joining import Platform, platform
from tests.regions.control.support import MODEL, new

from skerry_regions.control.machines import authority
from skerry_regions.control.machines import calls as control_calls
from skerry_regions.control.machines.authority import (
    MACHINE_SECONDS,
    SERVER_SECONDS,
    Authority,
    AuthorityError,
    ListenerTLS,
)
from skerry_regions.control.machines.book import RENEWABLE_SECONDS
from skerry_regions.control.machines.calls import ControlRefused
from skerry_regions.control.machines.folder import JoinError, certificate_request
from skerry_regions.control.machines.link import ControlLink, join
from skerry_regions.control.machines.messages import (
    SERVER_NAME,
    JoinRequest,
    NodeAssignment,
)

DAY = 86_400.0


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Platform]:
    with platform(tmp_path) as control:
        yield control


def test_nothing_is_told_to_a_control_plane_that_the_token_does_not_name(
    control: Platform, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    with platform(tmp_path / "other") as other:
        token = control.token()
        with pytest.raises(JoinError, match="is not the control plane that made the join token"):
            join(tmp_path / "m", other.url, token, kind="node")
    assert [each.uses for each in control.tokens.all()] == [0]


def test_what_comes_behind_the_named_certificate_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who stands between shows the real authority, and one of their own."""
    for name in ("real", "other"):
        (tmp_path / name).mkdir()
    path = tmp_path / "real" / "authority.pem"
    while len(ssl.PEM_cert_to_DER_cert(Authority.open(path).pem)) % 3 == 0:
        path.unlink()  # readers of Base64 end at padding; this one has none
    with platform(tmp_path / "real") as real, platform(tmp_path / "other") as other:
        both = real.authority.pem + other.authority.pem

        def shown(authority: Authority) -> str:
            return both

        monkeypatch.setattr(Authority, "pem", property(shown))
        with pytest.raises(JoinError, match=r"does not answer: .*CERTIFICATE_VERIFY_FAILED"):
            join(tmp_path / "m", other.url, real.token(), kind="node")


def test_a_machine_of_the_longest_names_is_known(control: Platform) -> None:
    region, pool = "r" * 63, "p" * 63
    new(control.store, "regions", name=region, iata="FRA")
    new(control.store, "pools", name=pool, region=region, role="decode", model=MODEL)
    control.look()
    link = control.joined("m", pool=f"{region}-{pool}")
    assert isinstance(link.assignment(), NodeAssignment)
    link.close()


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
    with pytest.raises(control_calls.ControlAway):  # however its system tells of the alert
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


def test_a_machine_cannot_pose_as_the_control_plane(control: Platform) -> None:
    control.joined("m").close()
    posing = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    posing.load_cert_chain(
        control.folder / "m" / "certificate.pem", control.folder / "m" / "key.pem"
    )
    trusting = control_calls.trusting(control.authority.pem)
    with pytest.raises(ssl.SSLCertVerificationError, match="is not valid for 'control"):
        shake_hands(trusting, posing)


def test_the_listener_renews_its_own_certificate(control: Platform) -> None:
    tls = ListenerTLS(control.authority, control.clock)
    first = shown(tls)
    assert shown(tls) == first
    control.clock.now += SERVER_SECONDS / 2
    assert shown(tls) != first


def test_a_listener_that_cannot_renew_shows_what_it_has(
    control: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = ListenerTLS(control.authority, control.clock)
    first = shown(tls)
    control.clock.now += SERVER_SECONDS / 2

    def full(context: ssl.SSLContext, pair: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(authority, "load_pair", full)
        assert shown(tls) == first
    assert shown(tls) != first


def shown(tls: ListenerTLS) -> bytes | None:
    """The certificate that a client is shown."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    return shake_hands(anybody, tls.context).getpeercert(binary_form=True)


def shake_hands(ours: ssl.SSLContext, theirs: ssl.SSLContext) -> ssl.SSLObject:
    """A client's end of a connection in memory."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ours.wrap_bio(to_client, to_server, server_hostname=SERVER_NAME)
    server = theirs.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client


def test_a_machine_that_cannot_come_back_is_forgotten(control: Platform) -> None:
    def join_now() -> str:
        csr = certificate_request(ec.generate_private_key(ec.SECP256R1()))
        request = JoinRequest(token=control.token(), csr=csr, kind="node")
        return control.machines.join(request)[0].id

    join_now()
    control.clock.now += MACHINE_SECONDS + RENEWABLE_SECONDS + 1
    assert [join_now()] == [machine.id for machine in control.machines.all()]
