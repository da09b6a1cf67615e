"""A real `redis-server`, on a unix socket."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.tools import program


class RedisServer:
    """Runs from its creation until `stop`; keeps nothing on disk."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()  # a socket's path is short
        self._path = Path(self._folder.name) / "redis.sock"
        self._program = program("redis-server", "redis-server")
        self.start()

    @property
    def url(self) -> str:
        return f"unix://{self._path}"

    def start(self) -> None:
        command = [self._program, "--port", "0", "--unixsocket", str(self._path), "--save", "",
                   "--appendonly", "no", "--dir", self._folder.name]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        give_up = time.monotonic() + 30
        while self.ask("PING") != b"+PONG\r\n":
            assert time.monotonic() < give_up
            time.sleep(0.02)

    def ask(self, *words: str | bytes) -> bytes:
        """What it answers to a command; nothing where it is not there."""
        data = [word.encode() if isinstance(word, str) else word for word in words]
        command = b"*%d\r\n" % len(data)
        for each in data:
            command += b"$%d\r\n%s\r\n" % (len(each), each)
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(30)
                client.connect(str(self._path))
                client.sendall(command)
                return client.recv(1 << 16)
        except (FileNotFoundError, ConnectionError):
            return b""

    def names(self) -> list[str]:
        """All of them, as they are."""
        lines = self.ask("KEYS", "*").decode().split("\r\n")
        return sorted(line for line in lines if line.startswith("skerry:"))

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._path.unlink(missing_ok=True)

    def stop(self) -> None:
        self.kill()
        self._folder.cleanup()
