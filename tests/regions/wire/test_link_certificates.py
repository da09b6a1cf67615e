"""Certificates of links: followed, revoked, and of an operator's own authority."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest
from cryptography import x509
from tests.regions.toy_nodes import until
from tests.regions.wire.tls_links import (
    KEY,
    LOOPBACK,
    Caller,
    Listening,
    Machines,
    openssl,
    refusal,
)

from skerry_regions.address import Address
from skerry_regions.wire import link_tls
from skerry_regions.wire.link_auth import LinkCredentials, connect
from skerry_regions.wire.link_certificates import LinkCertificates
from skerry_regions.wire.link_files import BadCertificates, LinkFiles

pytestmark = pytest.mark.anyio


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path / "authority")


async def test_new_links_take_a_new_certificate_and_open_ones_stay(machines: Machines) -> None:
    node, edge = machines.of("n", "node"), machines.of("e", "edge")
    assert node.certificates is not None
    shown: list[int] = []

    async def serial(at: Address) -> int:
        folder = machines.folder / "e"
        text = await asyncio.to_thread(
            openssl, at.port, "-cert", f"{folder}/certificate.pem", "-key", f"{folder}/key.pem"
        )
        pem = text[text.index("-----BEGIN") : text.index("-----END")] + "-----END CERTIFICATE-----"
        return x509.load_pem_x509_certificate(pem.encode()).serial_number

    async with Listening(node) as at:
        old = await connect(at, Caller, edge, "streams")
        shown.append(await serial(at))
        machines.issue("n", "node")
        assert await serial(at) == shown[0], "before it was looked at"
        node.certificates.look()
        shown.append(await serial(at))
        assert shown[0] != shown[1]
        old.transport.write(b"still there")
        await until(lambda: bytes(old.heard) == b"still there")
        old.transport.abort()


async def test_files_that_do_not_fit_change_nothing(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    node, edge = machines.of("n", "node"), machines.of("e", "edge")
    assert node.certificates is not None
    (machines.folder / "n" / "certificate.pem").write_text("half a")
    for _ in range(3):
        node.certificates.look()
    assert caplog.text.count("certificates of links stay as they were") == 1
    async with Listening(node) as at:
        (await connect(at, Caller, edge, "streams")).transport.abort()
    machines.issue("n", "node")
    node.certificates.look()
    (machines.folder / "e" / "certificate.pem").write_text("half a")
    with pytest.raises(BadCertificates, match=r"certificate\.pem is no certificate"):
        LinkCertificates(LinkFiles.joined(machines.folder / "e"))


async def test_certificates_that_come_later_are_used_from_then_on(machines: Machines) -> None:
    files = LinkFiles.joined(machines.folder / "late")
    late = LinkCredentials(KEY.key, LinkCertificates(files))
    assert late.certificates is not None
    assert not late.certificates.are_there
    assert not isinstance(late.end(LOOPBACK, "kv", listens=True), link_tls.TlsEnd)
    machines.issue("late", "node")
    late.certificates.look()
    assert isinstance(late.end(LOOPBACK, "kv", listens=True), link_tls.TlsEnd)
    assert late.machine == "late"


@pytest.mark.parametrize("at", ["n", "e"])
async def test_a_revoked_machine_loses_its_links_and_opens_none(
    machines: Machines, at: str
) -> None:
    """Whichever end it is at."""
    ends = {"n": machines.of("n", "node"), "e": machines.of("e", "edge")}
    certificates = ends[at].certificates
    assert certificates is not None
    other = "e" if at == "n" else "n"
    listening = Listening(ends["n"])
    async with listening as where:
        link = await connect(where, Caller, ends["e"], "streams")
        await until(lambda: bool(listening.opened))
        async with certificates.following():
            machines.revoke(at, "another", other)
            started = time.monotonic()
            await until(lambda: link.is_lost and listening.opened[0].is_lost)
            assert time.monotonic() - started < 10
        assert await refusal(where, ends["e"], "streams")
        assert len(listening.opened) == 1
        machines.revoke(at, "another")
        certificates.look()
        (await connect(where, Caller, ends["e"], "streams")).transport.abort()


# --- an operator's own authority -----------------------------------------------------------------


def own_authority(folder: Path, name: str, runs: str) -> LinkFiles:
    """Certificates made by `openssl`: an RSA root, an intermediate, and a machine below it."""

    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    def signed(subject: str, issuer: str, extensions: str) -> None:
        (folder / f"{subject}.ext").write_text(extensions)
        run("req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{subject}.key",
            "-subj", f"/CN={subject}", "-out", f"{subject}.csr")  # fmt: skip
        run("x509", "-req", "-in", f"{subject}.csr", "-CA", f"{issuer}.crt", "-CAkey",
            f"{issuer}.key", "-CAcreateserial", "-days", "2", "-extfile", f"{subject}.ext",
            "-out", f"{subject}.crt")  # fmt: skip

    if not (folder / "root.crt").exists():
        run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "root.key", "-out",
            "root.crt", "-days", "2", "-subj", "/CN=root")  # fmt: skip
        signed("middle", "root", "basicConstraints=critical,CA:TRUE,pathlen:0\n")
    signed(name, "middle", f"subjectAltName=URI:skerry:machine:{name},URI:skerry:runs:{runs}\n")
    own = folder / f"{name}-links"
    own.mkdir()
    (own / "tls.key").write_bytes((folder / f"{name}.key").read_bytes())
    chain = (folder / f"{name}.crt").read_bytes() + (folder / "middle.crt").read_bytes()
    (own / "tls.crt").write_bytes(chain)
    return LinkFiles.given(own)


@pytest.mark.parametrize("believed", ["root", "middle"])
async def test_an_operators_own_authority_is_taken(tmp_path: Path, believed: str) -> None:
    """Its root, or an intermediate alone."""
    ends: dict[str, LinkCredentials] = {}
    for name, runs in (("n-1", "node"), ("e-1", "edge")):
        files = own_authority(tmp_path, name, runs)
        files.authority.write_bytes((tmp_path / f"{believed}.crt").read_bytes())
        ends[name] = LinkCredentials(certificates=LinkCertificates(files))
    async with Listening(ends["n-1"]) as at:
        link = await connect(at, Caller, ends["e-1"].towards("n-1"), "streams")
        link.transport.write(b"hello")
        await until(lambda: bytes(link.heard) == b"hello")
        link.transport.abort()
