"""Where edges listen: at the port of before, unless another has it."""

from __future__ import annotations

import socket
from dataclasses import replace as changed

import pytest
from msgspec.structs import replace

from skerry_regions.control.planning.launcher import EdgeSettings, Launch, LaunchFailed
from skerry_regions.control.reconcile.edge_listeners import EdgeListeners
from skerry_regions.process.launch_folder import LaunchRecord
from skerry_regions.process.spawning import bound

pytestmark = pytest.mark.anyio

HOST = "127.0.0.1"
ANY = Launch(
    id="e-1", owner="e", settings=EdgeSettings(region="fra", host=HOST, models=("m",))
)  # fmt: skip


def record(port: int) -> LaunchRecord:
    return LaunchRecord(
        id="e-0", owner="e", kind="edge", region="fra", fingerprint="f",
        address=f"tcp:{HOST}:{port}", control="", started=1.0,
    )  # fmt: skip


def accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) == 0


async def test_a_port_that_no_one_chose_is_another_where_the_former_is_taken() -> None:
    with bound(HOST, 0) as free:
        former = free.getsockname()[1]
    listeners = EdgeListeners(list)
    assert (await listeners.take(changed(ANY, former_port=former), HOST)).port == former
    listeners.close()
    with socket.create_server((HOST, former)):
        taken = await listeners.take(changed(ANY, former_port=former), HOST)
        assert taken.port not in (0, former)
        with pytest.raises(LaunchFailed, match=f"e-1 cannot listen on {HOST} port {former}: .* in"):
            await listeners.take(changed(ANY, port=former), HOST)
    listeners.close()


async def test_a_successor_shares_the_port_of_the_edge_that_it_succeeds() -> None:
    """Of an edge that was adopted there is no socket here."""
    with bound(HOST, 0) as adopted:
        adopted.listen()
        port = adopted.getsockname()[1]
        running = [record(port)]
        listeners = EdgeListeners(lambda: running)
        for launch in (changed(ANY, former_port=port), changed(ANY, port=port)):
            assert (await listeners.take(launch, HOST)).port == port
            listeners.close()
        other = changed(ANY, owner="other", port=port)
        with pytest.raises(LaunchFailed):
            await listeners.take(other, HOST)
        running = [replace(record(port), draining_since=2.0)]
        assert (await listeners.take(other, HOST)).port == port
        listeners.close()


async def test_callers_of_an_edge_that_died_wait_for_the_next() -> None:
    with bound(HOST, 0) as free:
        port = free.getsockname()[1]
    running = [record(port)]
    listeners = EdgeListeners(lambda: running)
    listeners.hold(record(port))
    assert not accepts(port), "an edge serves there"
    running.clear()
    listeners.hold(record(port))
    assert accepts(port)
    assert (await listeners.take(changed(ANY, former_port=port), HOST)).port == port
    listeners.let_go_of_unserved("e")
    assert not accepts(port)
    listeners.hold(record(port))
    listeners.close()
