"""docs/many-machines.md: its ten commands, as they stand, on three machines of loopback."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.docs.test_examples import blocks
from tests.e2e.command import MODEL, SECONDS, Skerry, new_home, until
from tests.regions.drivers.nats_server import BINARY

from skerry_regions.models.model_files import ModelFiles
from skerry_regions.process.launch_folder import LaunchFolder

pytestmark = [pytest.mark.model, pytest.mark.slow]

PAGE = "docs/many-machines.md"
NAMES = ("10.0.0.5", "10.0.0.6", "10.0.0.7")  # of the page; here each is an address of loopback
PORTS = (4222, 8787, 8789, 8792)
SAID = {
    "nats-server ": "Server is ready",
    "skerry control ": "The control plane is ready at",
    "skerry host ": "The host .* is ready",
    "skerry edge ": "ready at http",
}  # by a command that goes on, when it is ready


@dataclass(frozen=True)
class Shell:
    """Somebody at one machine: a folder, a home, and programs on their PATH."""

    folder: Path
    skerry: Skerry
    account: dict[str, str]

    def run(self, command: str) -> subprocess.Popen[str]:
        """Run a command as it is written; with an & at its end it goes on."""
        environ = self.skerry.environ | self.account
        environ["PATH"] = f"{self.folder / 'bin'}{os.pathsep}{environ['PATH']}"
        log = (self.folder / "log").open("a+")
        process = subprocess.Popen(
            ["bash", "-c", f"exec env {command}"], env=environ, cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        log.close()
        return process

    def log(self) -> str:
        return (self.folder / "log").read_text()


def shell(folder: Path, model: ModelFiles) -> Shell:
    kernels = model.directory.parents[1] / "cache"  # compiled once for all test runs
    kernels.mkdir(exist_ok=True)
    (folder / "bin").mkdir(parents=True)
    skerry = new_home(folder, model)
    edge_home = new_home(folder / "edge", model).home
    edge_home.rename(folder / "edge-home")
    for home in (skerry.home, folder / "edge-home"):
        (home / "cache").symlink_to(kernels)
    (folder / "bin" / "nats-server").symlink_to(BINARY)
    command = folder / "bin" / "skerry"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m skerry "$@"\n')
    command.chmod(0o755)
    (folder / "log").touch()
    return Shell(folder, skerry, {})


def addresses() -> dict[str, str]:
    """Three of loopback's whose ports are free, for those of the page."""
    for number in range(2, 250):
        found = [f"127.0.{number}.{last}" for last in (5, 6, 7)]
        if all(is_free(host, port) for host in found for port in PORTS):
            return dict(zip(NAMES, found, strict=True))
    raise AssertionError("no address is free")


def is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def commands() -> list[str]:
    return [line for _, block in blocks(PAGE, "sh") for line in block.splitlines() if line]


@pytest.fixture
def shells(tmp_path: Path, default_model: ModelFiles) -> Iterator[list[Shell]]:
    found = [shell(tmp_path / name, default_model) for name in NAMES]
    yield found
    for each in found:
        each.skerry("down")


def test_the_page_has_ten_commands() -> None:
    assert len(commands()) == 10


@pytest.mark.timeout(600)
def test_from_one_laptop_to_three_machines(shells: list[Shell]) -> None:
    here = addresses()

    def written(text: str) -> str:
        """With addresses of here, and without the API's port, which others may have."""
        text = text.replace("skerry control --topology", "skerry control --port 0 --topology")
        return re.sub("|".join(map(re.escape, NAMES)), lambda found: here[found[0]], text)

    laptop, *others = shells
    [(_, platform)] = blocks(PAGE, "yaml")
    (laptop.folder / "platform.yaml").write_text(written(platform))
    up = laptop.skerry("up", "--detach", "--port", "0")
    assert up.returncode == 0, up.stderr
    exports = dict(re.findall(r"^export (\w+)='?(.*?)'?$", laptop.skerry("env").stdout, re.M))
    ai = f"/client/v4/accounts/{exports['SKERRY_ACCOUNT_ID']}/ai/v1"
    headers = {"authorization": f"Bearer {exports['SKERRY_API_TOKEN']}"}
    asked = {"model": MODEL, "input": "The sea is", "max_output_tokens": 4}
    begun = httpx.post(
        f"{exports['SKERRY_BASE_URL']}{ai}/responses", json=asked, headers=headers, timeout=SECONDS
    ).json()["id"]
    laptop.account.update(exports)

    running = list[tuple[Shell, str, subprocess.Popen[str]]]()
    at = [laptop] * 5 + [others[0]] * 2 + [others[1]] * 2 + [laptop]
    try:
        for where, command in zip(at, map(written, commands()), strict=True):
            if command == written(commands()[-1]):
                until(lambda: len(ready_nodes(laptop)) == 2)
            process = where.run(command.removesuffix("&"))
            if command.endswith("&"):
                running.append((where, command, process))
                wait_for(where, command, process)
            else:
                assert process.wait(SECONDS) == 0, f"{command}: {where.log()}"
            if (token := laptop.folder / "join-token").exists():
                for other in others:
                    shutil.copy(token, other.folder / "join-token")
        for other in NAMES[1:]:
            url = f"http://{here[other]}:8787{ai}/responses"
            assert httpx.get(f"{url}/{begun}", headers=headers).json()["id"] == begun
            going_on = asked | {"previous_response_id": begun}
            reply = httpx.post(url, json=going_on, headers=headers, timeout=SECONDS)
            assert reply.status_code == 200, reply.text
        hosts = {each["address"].split(":")[1] for each in ready_nodes(laptop)}
        assert hosts == {here["10.0.0.6"], here["10.0.0.7"]}
        listed = laptop.skerry("control", "machine", "list").stdout
        assert len(re.findall(r" 2/2 .* 1 +joined$", listed, re.MULTILINE)) == 2, listed
    finally:
        for where, command, process in reversed(running):
            is_host = "skerry host" in command  # it would wait until its nodes run elsewhere
            process.send_signal(signal.SIGKILL if is_host else signal.SIGTERM)
            for _, pid in LaunchFolder.of_control(where.skerry.home).running():
                os.kill(pid, signal.SIGTERM)
        for where, command, process in reversed(running):
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise AssertionError(f"{command} does not end: {where.log()}") from None


def wait_for(where: Shell, command: str, process: subprocess.Popen[str]) -> None:
    """Wait until a command that goes on has said that it is ready."""
    [said] = [words for part, words in SAID.items() if part in command]

    def has_said() -> bool:
        assert process.poll() is None, f"{command}: {where.log()}"
        return re.search(said, where.log()) is not None

    until(has_said)


def ready_nodes(laptop: Shell) -> list[dict[str, str]]:
    config = json.loads((laptop.skerry.home / "config.json").read_text())
    reply = httpx.get(
        f"{config['control_url']}/control/v1/nodes",
        headers={"authorization": f"Bearer {config['api_token']}"},
    )
    return [
        each
        for each in reply.json()["items"]
        if each["kind"] == "node" and each["state"] == "ready"
    ]
