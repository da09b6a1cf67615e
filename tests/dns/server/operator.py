"""An operator's machine: a DNS server, and programs beside it."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dns.name

ORIGIN = dns.name.from_text("example.test")
SECONDS = 60.0

TOPOLOGY = """\
regions: [{{name: fra, iata: FRA}}, {{name: ams, iata: AMS}}, {{name: iad, iata: IAD}}]
edges:
  - {{name: a, region: fra, addresses: [127.0.1.1, "::1"], url: "https://fra.example.test:9301"}}
  - {{name: b, region: ams, addresses: [127.0.1.2, "::1"], url: "https://ams.example.test"}}
  - {{name: c, region: iad, addresses: [127.0.1.3], url: "http://iad.example.test"}}
dns:
  zone: example.test
  nameservers: [{{name: ns1, addresses: [127.0.0.1]}}]
  nets:
    - {{net: 127.0.2.0/24, region: fra}}
    - {{net: 127.0.3.0/24, region: iad}}
    - {{net: 10.0.0.0/8, coordinates: [51.0, 6.8]}}
  records: ['www 300 IN A 127.0.1.80', 'alias 300 IN CNAME www', '*.w.w 300 IN TXT x'{records}]
  secondaries: [{{address: 127.0.0.1, port: {secondary}}}]
  {settings}
"""


def free_port() -> int:
    """That nobody has for either protocol, nor is given by chance (the kernel's are higher)."""
    while True:
        port = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
                udp.bind(("127.0.0.1", port))
            return port


@contextmanager
def running(
    command: list[str], log: Path, env: dict[str, str]
) -> Generator[subprocess.Popen[bytes]]:
    with log.open("wb") as file, subprocess.Popen(command, env=env, stdout=file, stderr=file) as it:
        try:
            yield it
        finally:
            it.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                it.wait(20)
            it.kill()


@dataclass
class Operator:
    """A home with a zone, and the tools."""

    folder: Path
    env: dict[str, str]
    secondary: int = field(default_factory=free_port)
    port: int = 0

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def write(self, settings: str = "", records: str = "") -> Path:
        path = self.folder / "topology.yaml"
        path.write_text(
            TOPOLOGY.format(secondary=self.secondary, settings=settings, records=records)
        )
        return path

    def skerry(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "skerry", *arguments]

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return done.stdout + done.stderr

    @contextmanager
    def serving(self, settings: str = "") -> Generator[subprocess.Popen[bytes]]:
        path, log = self.write(settings), self.folder / "skerry.log"
        command = self.skerry("dns", "--topology", str(path), "--port", "0", "--workers", "1")
        with running(command, log, self.env) as process:
            self.until(lambda: re.search(r"ready at .* port (\d+)", log.read_text()))
            found = re.search(r"ready at .* port (\d+)", log.read_text())
            assert found is not None
            self.port = int(found[1])
            yield process

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.1)

    def dig(self, *arguments: str, port: int | None = None) -> str:
        asked = ("+tries=1", "+time=10", *arguments)
        return self.run("dig", "@127.0.0.1", "-p", str(port or self.port), *asked)

    def short(self, *arguments: str) -> list[str]:
        return sorted(self.dig("+short", *arguments).split("\n"))[1:]
