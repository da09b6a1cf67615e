"""Coding agents as their makers publish them do a small task end to end: `make test-all`.

Each runs against a platform of its own whose model says what a script has, so that the agent's own
tools are called and their results come back; the tokens, the template, the calls' markup, the cache
and HTTP or the WebSocket are real. Then once more against random weights, which say anything.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from bench.subjects.long_context import LONG_CONTEXT, long_context_file
from tests.conftest import ROOT
from tests.e2e.command import Skerry, new_home

from skerry_edge.text.model import TextModel
from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.slow, pytest.mark.model, pytest.mark.timeout(900)]

CACHE = ROOT / ".cache" / "conformance"
SCRIPTED = Path(__file__).parent / "scripted"
SECONDS = 400  # for an agent's whole run
TASK = "Write hello.txt with the text hi."
DONE = "I wrote hello.txt."
CODEX = """
model = "{model}"
model_provider = "skerry"
model_context_window = 100000
approval_policy = "never"
sandbox_mode = "danger-full-access"
web_search = "disabled"
[agents]
enabled = false
[model_providers.skerry]
name = "Skerry"
base_url = "{url}/v1"
env_key = "SKERRY_API_TOKEN"
wire_api = "responses"
supports_websockets = {over_socket}
"""


@dataclass(frozen=True, kw_only=True)
class Scripted(Skerry):
    """The `skerry` command, whose toy model has a script."""

    script: Path

    @property
    def environ(self) -> dict[str, str]:
        own = super().environ
        path = os.pathsep.join((str(SCRIPTED), own["PYTHONPATH"]))
        return own | {"PYTHONPATH": path, "SKERRY_TEST_SCRIPT": str(self.script)}


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A coding agent, run in a folder of work with a folder of its own settings."""

    package: str  # of npm
    program: str
    home: Path
    work: Path
    url: str
    token: str
    ends: tuple[int, ...] = (0,)  # statuses with which it may

    def run(self, *arguments: str, **environ: str) -> str:
        """Return what it says, to its end. Skips where it cannot be installed."""
        program = _installed(self.package) / self.program
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        own = {"HOME": str(self.home), "SKERRY_API_TOKEN": self.token}
        done = subprocess.run(
            [program, *arguments], cwd=self.work, env=kept | own | environ, timeout=SECONDS,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode in self.ends, done.stdout
        return done.stdout


def _installed(package: str) -> Path:
    """Return the folder of a package's programs, installed once."""
    if shutil.which("npm") is None or platform.machine() != "x86_64":
        pytest.skip("needs npm, and a machine that the agent is built for")
    folder = CACHE / package.strip("@").replace("/", "-")
    programs = folder / "node_modules" / ".bin"
    if not programs.exists():
        folder.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(folder)]
        if subprocess.run([*npm, package], check=False, timeout=SECONDS).returncode:
            shutil.rmtree(folder)
            pytest.skip(f"{package} cannot be installed here")
    return programs


def codex(agent: Agent, *, over_socket: bool) -> str:
    """Codex, which speaks Responses."""
    words = {"url": agent.url, "model": LONG_CONTEXT, "over_socket": str(over_socket).lower()}
    (agent.home / "config.toml").write_text(CODEX.format(**words))
    return agent.run("exec", "--skip-git-repo-check", TASK, CODEX_HOME=str(agent.home))


def claude(agent: Agent) -> str:
    """Claude Code, which speaks Messages."""
    return agent.run(
        "-p", TASK, "--allowedTools", "Bash Write",
        CLAUDE_CONFIG_DIR=str(agent.home), ANTHROPIC_BASE_URL=agent.url,
        ANTHROPIC_AUTH_TOKEN=agent.token, ANTHROPIC_MODEL=LONG_CONTEXT,
        ANTHROPIC_SMALL_FAST_MODEL=LONG_CONTEXT, DISABLE_AUTOUPDATER="1",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", CLAUDE_CODE_MAX_OUTPUT_TOKENS="128",
    )  # fmt: skip


CODEX_PACKAGE, CLAUDE_PACKAGE = "@openai/codex@0.169.0", "@anthropic-ai/claude-code@2.1.330"


@contextmanager
def serving(skerry: Skerry, runner: str) -> Generator[dict[str, Any]]:
    """A platform with the model of many positions; gives what it leaves for clients."""
    kept = Path(os.environ.get("SKERRY_TEST_HOME", ROOT / ".cache" / "skerry"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SKERRY_HOME", str(kept))  # where the default model's vocabulary is
        file = long_context_file(kept / "shapes")
    added = skerry("models", "add", str(file), "--as", LONG_CONTEXT)
    assert added.returncode == 0, added.stderr
    skerry.up("--model", LONG_CONTEXT, runner=runner)
    try:
        yield json.loads((skerry.home / "config.json").read_text())
    finally:
        skerry("down", "--timeout", "5")


def scripted(parent: Path, model: ModelFiles, texts: list[str]) -> Scripted:
    """A home whose toy model says `texts`, one after another."""
    text = TextModel(model, context_window=8192)
    spellings = [text.token_bytes(id).hex() for id in range(model.vocab_size)]
    ends = {"start": text.control_id("<|im_start|>"), "end": text.control_id("<|im_end|>")}
    text.close()
    script = parent / "script.json"
    script.write_text(json.dumps(ends | {"spellings": spellings, "texts": texts}))
    return Scripted(home=new_home(parent, model).home, script=script)


def call(name: str, **arguments: str) -> str:
    """Return a call of a tool in the model's markup."""
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


def agent(parent: Path, package: str, program: str, config: dict[str, Any], *ends: int) -> Agent:
    for name in ("home-of-agent", "work"):
        (parent / name).mkdir()
    return Agent(
        package=package, program=program, home=parent / "home-of-agent", work=parent / "work",
        url=config["url"], token=config["api_token"], ends=ends or (0,),
    )  # fmt: skip


def requests(config: dict[str, Any]) -> dict[tuple[str, str, str], float]:
    """Return the requests that were answered so far, by method, end of the route, and status."""
    headers = {"authorization": f"Bearer {config['api_token']}"}
    page = httpx.get(f"{config['url']}/metrics", headers=headers, trust_env=False).text
    found: dict[tuple[str, str, str], float] = {}
    for line in page.splitlines():
        if line.startswith("skerry_http_requests_total{"):
            labels, _, value = line.partition("{")[2].rpartition("} ")
            named = dict(each.split("=", 1) for each in labels.replace('"', "").split(","))
            route = named["route"].rpartition("/")[2]
            found[named["method"], route, named["status"]] = float(value)
    return found


@pytest.mark.parametrize("over_socket", [False, True], ids=["HTTP", "WebSocket"])
def test_codex(default_model: ModelFiles, tmp_path: Path, over_socket: bool) -> None:
    texts = [call("exec_command", cmd="printf hi > hello.txt && cat hello.txt"), DONE]
    with serving(scripted(tmp_path, default_model, texts), "toy") as config:
        told = codex(agent(tmp_path, CODEX_PACKAGE, "codex", config), over_socket=over_socket)
        answered = requests(config)
    assert told.rstrip().endswith(DONE)
    assert (tmp_path / "work" / "hello.txt").read_text() == "hi"
    # Over the WebSocket it prepares its prompt first, and sends only what is new.
    assert answered["POST", "responses", "200"] == (3 if over_socket else 2)
    assert answered.get(("GET", "responses", "101"), 0) == over_socket


def test_claude_code(default_model: ModelFiles, tmp_path: Path) -> None:
    file = tmp_path / "work" / "hello.txt"
    texts = [
        call("Write", file_path=str(file), content="hi"),
        call("Bash", command="cat hello.txt", description="Read it"),
        DONE,
    ]
    with serving(scripted(tmp_path, default_model, texts), "toy") as config:
        told = claude(agent(tmp_path, CLAUDE_PACKAGE, "claude", config))
        answered = requests(config)
    assert told.rstrip().endswith(DONE)
    assert file.read_text() == "hi"
    assert answered["POST", "messages", "200"] >= 3


@pytest.mark.parametrize("name", ["codex", "claude"])
def test_first_turns_against_random_weights(
    default_model: ModelFiles, tmp_path: Path, name: str
) -> None:
    with serving(new_home(tmp_path, default_model), "numba") as config:
        if name == "codex":
            codex(agent(tmp_path, CODEX_PACKAGE, "codex", config), over_socket=True)
        else:
            # It gives up, as no answer ends by itself.
            claude(agent(tmp_path, CLAUDE_PACKAGE, "claude", config, 0, 1))
        answered = requests(config)
    route = "responses" if name == "codex" else "messages"
    assert answered["POST", route, "200"] >= 1
    assert {status for _, _, status in answered} <= {"200", "101"}
