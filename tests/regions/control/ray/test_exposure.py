"""Ray is used in a network namespace of its own, at private addresses, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skerry_regions.control.reconcile.ray.exposure import (
    FIRST_PIDS,
    Exposed,
    check_address,
    check_listeners,
)

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"  # noqa: E501
RAYLET = b"/opt/venv/site-packages/ray/core/src/ray/raylet/raylet\0--node_ip_address=10.0.0.5\0"
WORKER = b"ray::Keeper\0\0"


def entry(number: int, address: str, state: str, inode: int) -> str:
    """A line as Linux writes it (proc(5), /proc/net/tcp)."""
    remote = "0" * len(address.partition(":")[0]) + ":0000"
    return f"   {number}: {address} {remote} {state} 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1 0000000000000000 100 0 0 10 0\n"  # noqa: E501


class Proc:
    """`/proc` of a machine, on which a process of Ray's has the socket 4711."""

    def __init__(self, root: Path, sockets: str, *, own: str = "lo eth0", line: bytes = RAYLET):
        self.root = root
        for name, interfaces in (("self", own), ("1", "lo eth0")):
            (root / name / "net").mkdir(parents=True)
            rows = "".join(f"{each:>6}: 0 0 0\n" for each in interfaces.split())
            (root / name / "net" / "dev").write_text(f"Inter-| Receive\n face |bytes\n{rows}")
        (root / "self/net/tcp").write_text(HEAD)
        (root / "self/net/tcp6").write_text(HEAD + sockets)
        (root / "self/ns").mkdir()
        self.pids(FIRST_PIDS)
        (root / "77/fd").mkdir(parents=True)
        (root / "77/cmdline").write_bytes(line)
        (root / "77/fd/3").symlink_to("/dev/null")
        (root / "77/fd/9").symlink_to("socket:[4711]")

    def pids(self, namespace: str) -> None:
        link = self.root / "self/ns/pid"
        link.unlink(missing_ok=True)
        os.symlink(namespace, link)


ALL_SIX = entry(0, f"{'0' * 32}:2768", "0A", 4711)


@pytest.mark.parametrize("line", [RAYLET, WORKER])
def test_a_listener_on_all_interfaces_of_the_machine_is_refused(
    tmp_path: Path, line: bytes
) -> None:
    proc = Proc(tmp_path, ALL_SIX, line=line)
    with pytest.raises(Exposed, match=r"process 77 listens on all interfaces .* \(port 10088\)"):
        check_listeners(proc.root)


def test_so_is_one_of_ipv4(tmp_path: Path) -> None:
    proc = Proc(tmp_path, "")
    table = HEAD + entry(0, "00000000:2768", "0A", 4711)
    (tmp_path / "self/net/tcp").write_text(table)
    with pytest.raises(Exposed, match="10088"):
        check_listeners(proc.root)


def test_in_a_namespace_of_its_own_it_may(tmp_path: Path) -> None:
    check_listeners(Proc(tmp_path / "loopback", ALL_SIX, own="lo").root)
    container = Proc(tmp_path / "container", ALL_SIX)
    container.pids("pid:[4026532571]")
    check_listeners(container.root)


@pytest.mark.parametrize(
    "sockets",
    [
        "",
        entry(0, "0000000000000000FFFF00000100007F:2768", "0A", 4711),  # ::ffff:127.0.0.1
        entry(0, f"{'0' * 32}:2768", "01", 4711),  # a connection
        entry(0, f"{'0' * 32}:2768", "0A", 4712),  # another process's
    ],
)
def test_what_is_no_such_listener_is_none(tmp_path: Path, sockets: str) -> None:
    check_listeners(Proc(tmp_path, sockets).root)


def test_what_others_listen_at_is_theirs(tmp_path: Path) -> None:
    check_listeners(Proc(tmp_path, ALL_SIX, line=b"/usr/sbin/sshd\0-D\0").root)


def test_our_own_machine_can_be_read() -> None:
    check_listeners()  # no Ray runs where tests do, or it is as it should be


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.5", "192.168.3.4", "::1", "fd00::7"])
def test_private_addresses_are_taken(host: str) -> None:
    check_address(host)


@pytest.mark.parametrize(
    "host", ["9.9.9.9", "2620:fe::fe", "0.0.0.0", "::", "head.example", "", "127.0.0.1:6379"]
)
def test_all_others_are_refused(host: str) -> None:
    with pytest.raises(Exposed):
        check_address(host)
