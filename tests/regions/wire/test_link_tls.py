"""Links between machines: TLS 1.3 with certificates at both ends, checked against who may talk."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from tests.regions.toy_nodes import MODEL, PATIENCE, RunningNode, hello, until
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
from skerry_regions.wire.link import NodeLink
from skerry_regions.wire.link_auth import LinkCredentials, connect, listen
from skerry_regions.wire.link_key import LinkRefused, Purpose

DAY = 86_400.0

pytestmark = pytest.mark.anyio


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path / "authority")


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[1], [5, 0, 70_000, 1], [3_000_000], [40_000] * 50])
async def test_bytes_arrive_as_they_were_sent(machines: Machines, sizes: list[int]) -> None:
    sent = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    async with Listening(machines.of("n", "node")) as at:
        caller = await connect(at, Caller, machines.of("e", "edge"), "streams")
        caller.transport.writelines(map(memoryview, sent))
        await until(lambda: len(caller.heard) >= sum(sizes))
        assert bytes(caller.heard) == b"".join(sent)
        caller.transport.close()
        await until(lambda: caller.is_lost)


async def test_what_was_sent_before_a_close_arrives(machines: Machines) -> None:
    heard: list[Caller] = []

    def caller() -> Caller:
        heard.append(Caller())
        return heard[-1]

    server, bound = await listen(LOOPBACK, caller, machines.of("n", "node"), "kv")
    calling = await connect(bound, Caller, machines.of("p", "node"), "kv")
    calling.transport.write(b"x" * 2_000_000)
    calling.transport.close()
    await until(lambda: bool(heard) and heard[-1].is_lost)
    assert heard[-1].heard == b"x" * 2_000_000
    server.close()


async def test_a_close_that_comes_before_the_proof_is_checked_costs_nothing(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    receive, may_go_on = link_tls.TlsEnd.receive, threading.Event()

    def late(self: link_tls.TlsEnd, data: bytes) -> tuple[bytes, bytes]:
        answer = receive(self, data)
        if self.machine == "p":  # has proven itself to the listening end
            may_go_on.wait(10)
        return answer

    monkeypatch.setattr(link_tls.TlsEnd, "receive", late)
    heard = Caller()
    server, bound = await listen(LOOPBACK, lambda: heard, machines.of("n", "node"), "kv")
    calling = await connect(bound, Caller, machines.of("p", "node"), "kv")
    calling.transport.write(b"x" * 50_000)
    calling.transport.close()
    await until(lambda: calling.is_lost)
    await asyncio.sleep(0.05)  # in which the listening end could see the end
    may_go_on.set()
    await until(lambda: heard.is_lost)
    assert heard.heard == b"x" * 50_000
    server.close()


async def test_much_is_encrypted_off_the_event_loop(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn, where = link_tls.TlsLink._turn, list[tuple[str, bool]]()

    def watched(self: link_tls.TlsLink, received: list[bytes], unsent: list[bytes]) -> object:
        size = sum(map(len, received)) + sum(map(len, unsent))
        where.append((threading.current_thread().name, size > link_tls.INLINE_BYTES))
        return turn(self, received, unsent)

    monkeypatch.setattr(link_tls.TlsLink, "_turn", watched)
    async with Listening(machines.of("n", "node")) as at:
        caller = await connect(at, Caller, machines.of("e", "edge"), "streams")
        caller.transport.write(b"x" * 500_000)
        await until(lambda: len(caller.heard) == 500_000)
        caller.transport.write(b"y")
        await until(lambda: len(caller.heard) == 500_001)
        caller.transport.abort()
    assert {name.startswith("link ciphers") for name, is_much in where if is_much} == {True}
    assert {name for name, is_much in where if not is_much} == {"MainThread"}


async def test_bytes_that_were_changed_on_the_way_end_the_link(machines: Machines) -> None:
    listening = Listening(machines.of("n", "node"))
    async with listening as at:

        async def serve(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
            far, onward = await asyncio.open_connection(at.host, at.port)

            async def answers() -> None:
                while data := await far.read(1 << 16):
                    back.write(data)

            task = asyncio.create_task(answers())
            while data := await near.read(1 << 16):
                if len(data) > 10_000:
                    data = data[:-1] + bytes([data[-1] ^ 1])
                onward.write(data)
            task.cancel()
            onward.close()
            back.close()

        relay = await asyncio.start_server(serve, "127.0.0.1", 0)
        through = Address(host="127.0.0.1", port=relay.sockets[0].getsockname()[1])
        caller = await connect(through, Caller, machines.of("e", "edge"), "streams")
        caller.transport.write(b"hello")
        await until(lambda: bytes(caller.heard) == b"hello")
        caller.transport.write(b"x" * 12_000)
        await until(lambda: listening.opened[0].is_lost)
        assert bytes(caller.heard) == b"hello"
        caller.transport.abort()
        relay.close()


# --- who may talk --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("purpose", "caller", "answerer", "why"),
    [
        ("streams", "edge", "node", ""),
        ("streams", "edge", "edge", ""),
        ("streams", "node", "node", "runs node: it may not open streams"),
        ("kv", "node", "node", ""),
        ("kv", "edge", "node", "runs edge: it may not open kv"),
        ("kv", "node", "edge", "runs edge: it may not take kv"),
    ],
)
async def test_what_a_machine_runs_decides_on_its_links(
    machines: Machines, purpose: Purpose, caller: str, answerer: str, why: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    listening = Listening(machines.of("answerer", answerer), purpose)
    own = machines.of("caller", caller)
    async with listening as at:
        if why:
            heard = await refusal(at, own, purpose)
            assert f"the machine {'caller' if 'open' in why else 'answerer'} {why}" in (
                caplog.text if "open" in why else heard
            )
            assert listening.opened == []
        else:
            (await connect(at, Caller, own, purpose)).transport.abort()


async def test_only_the_machine_that_is_meant_is_talked_to(machines: Machines) -> None:
    async with Listening(machines.of("one", "node")) as at:
        edge = machines.of("e", "edge")
        (await connect(at, Caller, edge.towards("one"), "streams")).transport.abort()
        with pytest.raises(LinkRefused, match="the machine one answers where two should"):
            await connect(at, Caller, edge.towards("two"), "streams")


async def test_a_link_of_one_purpose_is_none_of_another(machines: Machines) -> None:
    async with Listening(machines.of("n", "node", "edge"), "streams") as at:
        with pytest.raises(LinkRefused, match="does not speak skerry-kv/1"):
            await connect(at, Caller, machines.of("m", "node", "edge"), "kv")


@pytest.mark.parametrize("wrong", ["authority", "ended", "key"])
async def test_who_is_not_of_the_platform_gets_nowhere(
    machines: Machines, tmp_path: Path, wrong: str
) -> None:
    own = machines.of("n", "node")
    if wrong == "authority":
        stranger = Machines(tmp_path / "other").of("e", "edge")
    elif wrong == "ended":
        former = machines.authority._clock
        machines.authority._clock = lambda: time.time() - 400 * DAY
        stranger = machines.of("e", "edge")
        machines.authority._clock = former
    else:
        stranger = KEY
    listening = Listening(own)
    async with listening as at:
        assert await refusal(at, stranger, "streams")
        assert listening.opened == []


async def test_openssls_own_client_sees_tls_1_3_that_wants_a_certificate(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    folder = machines.issue("e", "edge")
    listening = Listening(machines.of("n", "node"))
    own = ("-cert", f"{folder}/certificate.pem", "-key", f"{folder}/key.pem")
    known = ("-CAfile", f"{folder}/authority.pem", "-alpn", "skerry-streams/1")
    async with listening as at:
        without = await asyncio.to_thread(openssl, at.port, *known)
        assert "New, TLSv1.3" in without
        assert "Requested Signature Algorithms" in without  # it was asked for a certificate
        await until(lambda: "a link was refused" in caplog.text)  # or who refuses sees it leave
        older = await asyncio.to_thread(openssl, at.port, *known, *own, "-tls1_2")
        assert "alert protocol version" in older
        assert listening.opened == []
        right = asyncio.to_thread(openssl, at.port, *known, *own, seconds=1)
        said, _ = await asyncio.gather(right, until(lambda: len(listening.opened) == 1))
        assert "New, TLSv1.3" in said
        assert "Verify return code: 0 (ok)" in said
        assert "ALPN protocol: skerry-streams/1" in said


async def test_between_machines_nothing_goes_in_plain_unless_it_is_said() -> None:
    far = Address(host="192.0.2.7", port=8790)
    for listens in (False, True):
        with pytest.raises(LinkRefused, match=r"encrypted.*let it join, or set SKERRY_LINK_TLS"):
            KEY.end(far, "streams", listens=listens)
        plain = LinkCredentials(KEY.key, may_be_plain=True)
        assert not isinstance(plain.end(far, "streams", listens=listens), link_tls.TlsEnd)
        near = KEY.end(LOOPBACK, "streams", listens=listens)
        assert not isinstance(near, link_tls.TlsEnd)


# --- nodes and edges -----------------------------------------------------------------------------


async def test_an_edge_reaches_a_node_over_tls(machines: Machines, tmp_path: Path) -> None:
    node = RunningNode("n", tmp_path)
    bound = await node.server.listen(LOOPBACK, machines.of("n", "node"))
    edge = machines.of("e", "edge")
    link = NodeLink("n", bound, hello("e"), PATIENCE, credentials=edge.towards("n"))
    try:
        async with asyncio.timeout(60):
            await until(lambda: link.is_up)
        assert (link.models, link.machine) == ({MODEL}, "n")
    finally:
        await link.close()
        await node.stop()
