"""A real Ray cluster, in a network namespace of its own: a head, and machines with homes of their
own."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CLONE_NEWNET = 0x40000000
CHECKS = {  # a machine that is gone is noticed after some seconds, not forty
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",  # that machines wait for a head
    "RAY_gcs_storage": "rocksdb",  # of what a head knows, for the next one
}


@contextmanager
def namespace() -> Generator[None]:
    """What this thread starts has a network with nothing but loopback."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a network namespace takes root and `ip`")
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as before:
        if libc.unshare(CLONE_NEWNET) != 0:
            pytest.skip(f"no network namespace: {os.strerror(ctypes.get_errno())}")
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            yield
        finally:
            assert libc.setns(before.fileno(), CLONE_NEWNET) == 0


@contextmanager
def variables(values: dict[str, str]) -> Generator[None]:
    """Have them in the environment."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def processes(*words: str) -> Iterator[int]:
    """Those whose command lines have all of these."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if all(word in line for word in words):
                yield int(path.parent.name)


def with_children(pids: set[int]) -> set[int]:
    """These, and what they have started."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids = pids | more
    return pids


class RayCluster:
    """Runs from its creation until `close`, with the environment's token."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets have short paths
        self._heads = list[subprocess.Popen[bytes]]()  # that took another's place
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        storage = {"RAY_gcs_storage_path": str(self.folder / "gcs")}
        self._ray(
            storage, "--head", "--port", str(self.port), "--num-cpus", "0",
            "--include-dashboard", "false", "--temp-dir", str(self.folder),
        )  # fmt: skip

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def machine(self, name: str, environ: dict[str, str], cpus: int = 4) -> None:
        """Add one, known by its name."""
        self._ray(
            environ, "--address", self.address, "--num-cpus", str(cpus),
            "--resources", f'{{"machine:{name}": 1}}',
        )  # fmt: skip

    def raylet(self, name: str) -> int:
        [found] = processes("/raylet/raylet", str(self.folder), f"machine:{name}")
        return found

    def kill_head(self) -> Callable[[], None]:
        """Return what starts another in its place: `ray start --head` refuses to, beside machines
        that run."""
        [pid] = processes("gcs_server", str(self.folder))
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")[:-1]
        environ = dict(pair.split(b"=", 1) for pair in pairs)
        os.kill(pid, signal.SIGKILL)

        def start() -> None:
            self._heads.append(
                subprocess.Popen(
                    command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )

        return start

    def close(self) -> None:
        """Nothing of it runs on."""
        found = {*processes(str(self.folder)), *processes(f"--address={self.address}")}
        for pid in with_children(found):  # some have no other command line than a title
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for head in self._heads:
            head.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ray(self, environ: dict[str, str], *arguments: str) -> None:
        done = subprocess.run(
            [
                sys.executable, "-m", "ray.scripts.scripts", "start", *arguments,
                "--node-ip-address", "127.0.0.1", "--disable-usage-stats", "--num-gpus", "0",
                "--object-store-memory", "80000000", "--include-log-monitor", "false",
            ],
            env=dict(os.environ) | environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def token() -> dict[str, str]:
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
