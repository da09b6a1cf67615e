"""What runs without a package that it has no use for: as where its extra is not installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, new_home, until

from skerry_edge.gate.tokens import TokenStore
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

ACCOUNT = "0123456789abcdef0123456789abcdef"
BLOCKER = """
import sys

BLOCKED = {blocked!r}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Blocker())
"""
# Of `skerry[core]`, `skerry[regions]` and `skerry[dns]` what `skerry[edge]` does not have.
NOT_OF_AN_EDGE = (
    "skerry_core", "skerry_dns", "numba", "llvmlite", "torch", "jax", "triton", "gguf",
    "safetensors", "llguidance", "xxhash", "aiohttp", "dns", "cryptography", "maxminddb",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Without(Skerry):
    """The command where some packages are not installed."""

    folder: Path  # of Python's own customisation
    blocked: tuple[str, ...]

    @property
    def environ(self) -> dict[str, str]:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "sitecustomize.py").write_text(BLOCKER.format(blocked=self.blocked))
        environ = super().environ
        path = os.pathsep.join((str(self.folder), environ["PYTHONPATH"]))
        return environ | {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


@contextmanager
def running(skerry: Skerry, log: Path, *arguments: str) -> Generator[None]:
    """The command in the background. It ends well when it is told to."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "skerry", *arguments],
            env=skerry.environ, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    try:
        until(lambda: "is ready at" in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, log.read_text()


def test_an_edge_needs_neither_engine_nor_dns(tmp_path: Path, default_model: ModelFiles) -> None:
    skerry = new_home(tmp_path, default_model)
    edge = Without(skerry.home, folder=tmp_path / "blocked", blocked=NOT_OF_AN_EDGE)
    token, _ = TokenStore(skerry.home / "tokens.json").create(account_id=ACCOUNT, now=0)
    node = ("node", "--id", "n", "--model", MODEL, "--runner", "toy", "--kv-blocks", "16")
    address = ("--address", f"unix:{tmp_path}/n")
    front = ("edge", "--id", "e", "--model", MODEL, "--port", "0")
    logs = tmp_path / "node.log", tmp_path / "edge.log"
    with running(skerry, logs[0], *node, *address), running(edge, logs[1], *front):
        url = logs[1].read_text().partition("is ready at ")[2].split(".\n")[0]
        answer = httpx.post(
            f"{url}/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}",
            headers={"authorization": f"Bearer {token}"},
            json={"prompt": "hi", "max_tokens": 2},
        )
        assert answer.status_code == 200, answer.text
        assert answer.json()["result"]["usage"]["completion_tokens"] == 2


def test_a_platform_needs_no_dns(tmp_path: Path, default_model: ModelFiles) -> None:
    whole = new_home(tmp_path, default_model)
    skerry = Without(whole.home, folder=tmp_path / "blocked", blocked=("dns", "skerry_dns"))
    skerry.up()
    try:
        config = json.loads((skerry.home / "config.json").read_text())
        with httpx.Client(
            base_url=f"{config['control_url']}/control/v1/",
            headers={"authorization": f"Bearer {config['api_token']}"},
        ) as control:
            region = {"name": "fra", "iata": "FRA"}
            assert control.post("regions", json=region).status_code == 201
            zone = {
                "name": "example.test",
                "nameservers": [{"name": "ns1", "addresses": ["192.0.2.1"]}],
            }
            record = {"zone": "example.test", "name": "@", "type": "A", "values": ["192.0.2.1"]}
            for refused in (
                control.post("dns_zones", json=zone),
                control.post("dns_records", json=record),
                control.get("dns_answer", params={"name": "ai.example.test"}),
            ):
                assert refused.status_code == 409
                assert "pip install '.[dns]'" in refused.json()["error"]["message"]
        done = skerry("dns", "--zone", "example.test")
        assert done.returncode == 1
        assert "pip install '.[dns]'" in done.stderr
        assert "Traceback" not in done.stderr
    finally:
        assert skerry("down").returncode == 0
