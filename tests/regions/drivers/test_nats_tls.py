"""TLS to real NATS servers: who gets in, what passes, and certificates that are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.regions.drivers.nats_server import NatsCluster
from tests.regions.wire.tls_links import Machines, Tap

from skerry_regions.address import Address
from skerry_regions.drivers.jetstream import connection
from skerry_regions.drivers.jetstream.answers import StateUnfit
from skerry_regions.drivers.jetstream.connection import JetStream
from skerry_regions.drivers.jetstream.specs import MIB, StreamSpec
from skerry_regions.drivers.jetstream.stream import KeyedStream, Write
from skerry_regions.drivers.nats_registry import NatsRegistry
from skerry_regions.drivers.nats_tls import EncryptedClient, NatsTLS
from skerry_regions.private_files import replace_file
from skerry_regions.registry import Member, RegistryUnavailable
from skerry_regions.state_url import StateURL
from skerry_regions.wire.link_files import BadCertificates, LinkFiles

SPEC = StreamSpec(table="test", max_bytes=8 * MIB, max_message_bytes=8192)
MARKER = b"a marker that nobody reads on the way"

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Machines:
    return Machines(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(machines: Machines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsCluster]:
    folder = tmp_path_factory.mktemp("nats")
    cluster = NatsCluster(folder, size=1, tls=machines.certify(folder / "tls"))
    yield cluster
    cluster.stop()


def tls_of(machines: Machines, name: str = "edge-1") -> NatsTLS:
    return NatsTLS(LinkFiles.joined(machines.issue(name, "edge")))


async def listening(cluster: NatsCluster) -> Address:
    """Where a server listens, once it does."""
    port = int(cluster.state.servers[0].rpartition(":")[2])
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return Address(host="127.0.0.1", port=port)


@asynccontextmanager
async def opened(url: str, tls: NatsTLS) -> AsyncGenerator[KeyedStream]:
    parsed = StateURL.parse(url)
    assert parsed is not None
    jetstream = JetStream(parsed, make_client=lambda: EncryptedClient(tls))
    await jetstream.open((SPEC, "eu"))
    try:
        assert jetstream.problem == ""
        yield KeyedStream(jetstream, SPEC, "eu")
    finally:
        await jetstream.close()


async def refusal(url: str, tls: NatsTLS) -> str:
    """Return why it is not opened. A start waits its whole time for a server that lets it in, so
    that is short here; and longer where a busy machine came to no answer in it."""
    parsed = StateURL.parse(url)
    assert parsed is not None
    reason, seconds = "", 0.4
    while not reason:
        jetstream = JetStream(parsed, make_client=lambda: EncryptedClient(tls))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(connection, "OPEN_SECONDS", seconds)
            try:
                await jetstream.open((SPEC, "eu"))
            except StateUnfit as refused:
                reason = str(refused)
            else:
                problem, seconds = jetstream.problem, 4 * seconds
                await jetstream.close()
                assert problem, "it was let in"
                assert seconds < 60, "the server neither lets it in nor refuses it"
    assert "loopback" not in reason
    return reason


async def test_nothing_can_be_read_on_the_way(server: NatsCluster, machines: Machines) -> None:
    tap, there = Tap(), await listening(server)
    async with tap.before(there) as at:
        through = server.url.replace(f":{there.port}", f":{at.port}")
        async with opened(through, tls_of(machines)) as stream:
            await stream.write(Write("a", MARKER))
            stored = await stream.last("a")
            assert stored is not None
            assert stored.data == MARKER
    assert len(tap.bytes) > 1000
    for secret in (MARKER, b"skerry-test-eu", b"loopback", b"sys"):
        assert secret not in tap.bytes


async def test_who_has_no_certificate_is_refused_and_reads_why(
    server: NatsCluster, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    await listening(server)
    unknown = await refusal(server.url, NatsTLS(None))
    assert "unable to get" in unknown
    monkeypatch.setenv("SSL_CERT_FILE", str(machines.issue("edge-1", "edge") / "authority.pem"))
    assert "certificate required; `?certificates=FOLDER`" in await refusal(
        server.url, NatsTLS(None)
    )


async def test_a_certificate_of_another_authority_is_refused(
    server: NatsCluster, machines: Machines, tmp_path: Path
) -> None:
    await listening(server)
    folder = Machines(tmp_path / "other").issue("edge-1", "edge")
    assert "TLS: " in await refusal(server.url, NatsTLS(LinkFiles.joined(folder)))
    (folder / "authority.pem").write_text(machines.authority.pem)
    assert "unknown ca; `?certificates=FOLDER`" in await refusal(
        server.url, NatsTLS(LinkFiles.joined(folder))
    )


async def test_a_server_shows_the_name_that_the_url_has(
    server: NatsCluster, machines: Machines
) -> None:
    await listening(server)
    url = server.url.replace("127.0.0.1", "localhost")
    assert "certificate is not valid for 'localhost'" in await refusal(url, tls_of(machines))


async def test_no_password_goes_to_a_server_that_does_not_encrypt(
    tmp_path: Path, machines: Machines
) -> None:
    cluster, tap = NatsCluster(tmp_path / "nats", size=1), Tap()
    there = await listening(cluster)
    async with tap.before(there) as at:
        url = cluster.url.replace("nats:", "tls:").replace(f":{there.port}", f":{at.port}")
        assert "the server does not encrypt" in await refusal(url, tls_of(machines))
    assert b"INFO" in tap.bytes
    assert b"loopback" not in tap.bytes
    cluster.stop()


async def test_certificates_of_another_authority_replace_those_in_use_and_no_write_is_lost(
    tmp_path: Path,
) -> None:
    """The servers', then the machine's: what is under way waits for it."""
    before, after = Machines(tmp_path / "before"), Machines(tmp_path / "after")
    tls = before.certify(tmp_path / "tls")
    cluster = NatsCluster(tmp_path / "nats", size=1, tls=tls)
    folder = before.issue("edge-1", "edge")
    num_written, some_are = 0, asyncio.Event()

    async def write(stream: KeyedStream) -> None:
        nonlocal num_written
        for number in range(60):
            await stream.write(Write(f"n.{number}", b"x", expected=0))
            num_written += 1
            if num_written == 20:
                some_are.set()
            await asyncio.sleep(0.01)

    async with opened(cluster.url, NatsTLS(LinkFiles.joined(folder))) as stream:
        writing = asyncio.create_task(write(stream))
        await some_are.wait()
        after.certify(tls)
        cluster.kill("n1")
        cluster.start("n1")
        await asyncio.sleep(0.3)
        assert num_written < 60, "the server's new certificate is not believed yet"
        other = after.issue("edge-1", "edge")
        for name in ("authority.pem", "key.pem", "certificate.pem"):
            replace_file(folder / name, (other / name).read_bytes())
        await writing
        assert await stream.count("n.*") == 60
    cluster.stop()


def test_files_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    folder = machines.issue("edge-1", "edge")
    tls = NatsTLS(LinkFiles.joined(folder))
    context = tls.context()
    assert tls.context() is context
    key = (folder / "key.pem").read_bytes()
    replace_file(folder / "key.pem", (machines.issue("edge-2", "edge") / "key.pem").read_bytes())
    assert tls.context() is context
    with pytest.raises(BadCertificates, match="key values mismatch"):
        NatsTLS(LinkFiles.joined(folder)).context()
    replace_file(folder / "key.pem", key)
    assert tls.context() is not context


def test_a_registry_behind_tls(server: NatsCluster, machines: Machines) -> None:
    url, tls = server.url.partition("?")[0], tls_of(machines)
    registry = NatsRegistry(url, make_client=lambda: EncryptedClient(tls))
    registry.announce(Member(id="a", kind="node", region="r"))
    assert [member.id for member in registry.members()] == ["a"]
    registry.close()
    stranger = NatsRegistry(url, make_client=lambda: EncryptedClient(NatsTLS(None)))
    with pytest.raises(RegistryUnavailable, match="TLS: unable to get") as refused:
        stranger.members()
    assert "loopback" not in str(refused.value)
    stranger.close()
