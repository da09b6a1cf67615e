"""The command where the client alone is installed: what it can do against a platform, and what it
says of the rest."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.e2e.command import MODEL, ROOT, SECONDS, new_home

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

ONLY = """
import sys

ALLOWED = {allowed!r}


class Only:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ALLOWED and top not in sys.stdlib_module_names and not top.startswith("_"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Only())
"""
# What the SDK's dependencies bring along, and the packages of our own wheel.
OF_HTTPX = {"httpcore", "h11", "idna", "certifi", "sniffio", "typing_extensions"}
OURS = {"skerry", "skerry_cli", "skerry_core", "skerry_dns", "skerry_edge", "skerry_regions"}


@dataclass(frozen=True)
class Client:
    """A machine with the client alone, and where its platform is."""

    folder: Path
    config: dict[str, str]

    def environ(self, *, configured: bool = True) -> dict[str, str]:
        """What a process of it sees: no packages but the client's."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        needed = {re.split("[>=]", each)[0] for each in project["dependencies"]}
        allowed = needed | OF_HTTPX | OURS
        (self.folder / "sitecustomize.py").write_text(ONLY.format(allowed=allowed))
        roots = [
            str(self.folder),
            *(str(ROOT / name) for name in ("edge", "core", "regions", "sdk")),
        ]
        kept = {name: value for name, value in os.environ.items() if "SKERRY" not in name}
        where = {
            "SKERRY_BASE_URL": self.config["url"],
            "SKERRY_ACCOUNT_ID": self.config["account_id"],
            "SKERRY_API_TOKEN": self.config["api_token"],
        }
        own = {"PYTHONPATH": os.pathsep.join(roots), "SKERRY_HOME": str(self.folder / "home")}
        return kept | own | (where if configured else {})

    def __call__(
        self, *arguments: str, configured: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "skerry", *arguments],
            env=self.environ(configured=configured),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("alone")
    skerry = new_home(folder, default_model)
    skerry.up()
    config = json.loads((skerry.home / "config.json").read_text())
    (folder / "client").mkdir()
    yield Client(folder / "client", config)
    assert skerry("down", "--timeout", "5").returncode == 0


def test_a_model_is_run(client: Client) -> None:
    done = client("run", MODEL, "The sea is", "--max-tokens", "8", "--seed", "7")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
    refused = client("chat")
    assert "chat needs a terminal" in refused.stderr


class Terminal:
    """A process at a terminal of its own, and what a person types and reads there."""

    def __init__(self, client: Client, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "skerry", *arguments],
            env=client.environ() | {"TERM": "dumb", "INPUTRC": os.devnull},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._read = b""

    def types(self, line: str) -> None:
        os.write(self._ours, line.encode())

    def reads(self, text: str) -> None:
        """Read on until this was printed."""
        wanted = text.replace("\n", "\r\n").encode()
        deadline = time.monotonic() + SECONDS
        while wanted not in self._read:
            ready, _, _ = select.select([self._ours], [], [], deadline - time.monotonic())
            assert ready, (text, self._read)
            self._read += os.read(self._ours, 65536)
        self._read = self._read.partition(wanted)[2]

    def close(self) -> int:
        """Wait for its end; its status."""
        try:
            return self._process.wait(SECONDS)
        finally:
            self._process.kill()
            os.close(self._ours)


def answered(client: Client, *turns: str) -> str:
    """What the REST API says to a conversation, whose last turn is the person's."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": turn} for n, turn in enumerate(turns)]
    reply = httpx.post(
        f"{client.config['url']}/client/v4/accounts/{client.config['account_id']}/ai/run/{MODEL}",
        json={"messages": messages, "max_tokens": 8, "temperature": 0},
        headers={"authorization": f"Bearer {client.config['api_token']}"},
        timeout=SECONDS,
        trust_env=False,
    )
    text: str = reply.json()["result"]["response"]
    return text


def test_a_conversation(client: Client) -> None:
    first = answered(client, "The sea is")
    second = answered(client, "The sea is", first, "And the sky?")
    assert second != answered(client, "And the sky?"), "the conversation counts"
    terminal = Terminal(client, "chat", MODEL, "--max-tokens", "8", "--temperature", "0")
    terminal.reads("/exit or Ctrl-D ends")
    terminal.reads("\n> ")
    for typed, said in (("The sea is", first), ("And the sky?", second)):
        terminal.types(f"{typed}\n")
        terminal.reads(f"{typed}\n{said}\n> ")
    terminal.types("/reset\n")
    terminal.reads("\n> ")
    terminal.types("The sea is\n")
    terminal.reads(f"The sea is\n{first}\n> ")
    terminal.types("/exit\n")
    assert terminal.close() == 0


def test_a_conversation_that_cannot_be_had(client: Client) -> None:
    """The error is shown, and the person asked again; Ctrl-D ends it."""
    terminal = Terminal(client, "chat", "@cf/none/none")
    terminal.reads("\n> ")
    terminal.types("hello\n")
    terminal.reads("@cf/none/none")
    terminal.reads("\n> ")
    terminal.types("\x04")
    assert terminal.close() == 0


def test_models_are_those_that_are_served(client: Client) -> None:
    listed = json.loads(client("models", "list", "--json").stdout)
    assert MODEL in {each["name"] for each in listed}
    table = client("models", "list").stdout.splitlines()
    assert table[0].split() == ["MODEL", "TASK", "CONTEXT"]
    assert any(MODEL in line and "Text Generation" in line for line in table[1:])


def test_usage_is_the_accounts(client: Client) -> None:
    assert client("run", MODEL, "The sky is", "--max-tokens", "4").returncode == 0
    [line] = json.loads(client("usage", "--format", "json").stdout)
    assert (line["model"], line["requests"] >= 1) == (MODEL, True)
    table = client("usage", "--by", "day,model").stdout
    assert table.splitlines()[0].split()[:2] == ["DAY", "MODEL"]
    wrong = client("usage", "--by", "colour")
    assert wrong.returncode == 1
    assert "colour" in wrong.stderr
    assert "its own" in client("usage", "--tenant", "0" * 32).stderr


@pytest.mark.parametrize("command", [["up", "--port", "0"], ["node", "--id", "x"], ["control"]])
def test_what_the_platform_is_needed_for(client: Client, command: list[str]) -> None:
    done = client(*command)
    assert done.returncode == 1
    assert f"{command[0]} is not installed. In a copy of its repository" in done.stderr
    assert 'pip install ".[platform]"' in done.stderr


def test_help_says_what_is_there(client: Client) -> None:
    shown = client("--help").stdout
    for command in ("run", "chat", "models", "usage", "up"):
        assert re.search(rf"^    {command} ", shown, re.MULTILINE), shown
    assert shown.count("not installed here") == 7
    assert 'pip install ".[platform]"' in shown


def test_no_platform_is_an_error_that_says_how_to_name_one(client: Client) -> None:
    for command in (["run", MODEL, "x"], ["models", "list"], ["usage"]):
        done = client(*command, configured=False)
        assert done.returncode == 1
        assert "SKERRY_BASE_URL" in done.stderr or "base_url" in done.stderr
        assert "Traceback" not in done.stderr
