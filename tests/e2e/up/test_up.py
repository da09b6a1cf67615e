"""`skerry up` as a person meets it: real processes, a real port, a home of its own."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, is_alive, new_home, until

from skerry import AI, AuthenticationError, ModelNotFound
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

MAX_RESIDENT = 700_000  # KiB


@pytest.fixture(scope="module")
def platform(
    tmp_path_factory: pytest.TempPathFactory, default_model: ModelFiles
) -> Iterator[tuple[Skerry, str]]:
    """A platform that several tests talk to, and what `skerry up` printed."""
    skerry = new_home(tmp_path_factory.mktemp("platform"), default_model)
    yield skerry, skerry.up("--log=text")
    assert skerry("down", "--timeout", "5").returncode == 0


def resident(pid: int) -> int:
    """Memory of a process in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def status_when_idle(skerry: Skerry) -> dict[str, Any] | None:
    """Return the status, or None while its node runs a stream: every two seconds the watchdog's
    canary is one."""
    status = skerry.status()
    return status if status["nodes"][0]["streams"] == 0 else None


def test_from_up_to_down(skerry: Skerry) -> None:
    printed = skerry.up()
    glance = skerry("status", "--json")
    assert glance.stderr == ""
    status, later = json.loads(glance.stdout), until(lambda: status_when_idle(skerry))
    [printed_node], [found] = status.pop("nodes"), later.pop("nodes")
    assert status == later
    assert printed_node.pop("engine").keys() == found["engine"].keys()
    assert printed_node | {"streams": 0, "engine": found["engine"]} == found
    url, [edge] = status["url"], status["edges"]
    pid = edge["pid"]
    assert edge == {"id": "edge-1", "pid": pid, "url": url, "region": "local"}
    assert found.pop("engine")["blocks"] > 0
    assert found == {
        "id": "node-1",
        "pid": pid,
        "role": "hybrid",
        "region": "local",
        "model": MODEL,
        "state": "ready",
        "streams": 0,
    }
    config = json.loads((skerry.home / "config.json").read_text())
    for value in (url, config["account_id"], config["api_token"], MODEL):
        assert value in printed
    assert MODEL.rpartition("/")[2] in skerry("status").stdout

    with skerry.ai() as ai:
        asked: dict[str, Any] = {"prompt": "The sea is", "max_tokens": 20, "seed": 7}
        whole = ai.run(MODEL, asked)
        assert whole.usage.completion_tokens <= 20
        with ai.run(MODEL, asked, stream=True) as chunks:
            assert "".join(chunk.response for chunk in chunks) == whole["response"]
        with pytest.raises(ModelNotFound):
            ai.run("@cf/no/such", {"prompt": "?"})
        with (
            pytest.raises(AuthenticationError),
            AI(base_url=url, account_id=config["account_id"], api_token="wrong") as stranger,
        ):
            stranger.run(MODEL, {"prompt": "?"})
    answer = skerry("run", MODEL, "The sea is", "--max-tokens", "20", "--seed", "7")
    assert answer.stdout == whole["response"] + "\n"

    again = skerry("up", "--port", "0")
    assert again.returncode == 1
    assert f"already running at {url}" in again.stderr

    assert f"process {pid}" in skerry("down").stdout
    assert not is_alive(pid)
    port = int(url.rpartition(":")[2])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0
    left = {path.name for path in (skerry.home / "run").iterdir()}
    assert left == {"skerry.lock", "state.lock"}
    stopped = skerry("status", "--json")
    assert stopped.returncode == 1
    assert json.loads(stopped.stdout) == {"url": "", "edges": [], "nodes": []}


def test_the_real_model_answers_the_same_alone_and_in_company(
    skerry: Skerry, default_model: ModelFiles
) -> None:
    kernels = default_model.directory.parents[1] / "cache"  # compiled once for all test runs
    kernels.mkdir(exist_ok=True)
    (skerry.home / "cache").symlink_to(kernels)
    skerry.up(runner="numba")
    prompts = [f"The capital of {country} is" for country in ("France", "Italy", "Japan", "Peru")]

    def ask(prompt: str) -> str:
        asked: dict[str, Any] = {"prompt": prompt, "raw": True, "max_tokens": 12, "temperature": 0}
        response: str = ai.run(MODEL, asked)["response"]
        return response

    with skerry.ai() as ai, ThreadPoolExecutor(len(prompts)) as pool:
        alone = [ask(prompt) for prompt in prompts]
        assert alone[0].startswith(" Paris")
        assert list(pool.map(ask, prompts * 3)) == alone * 3
    assert resident(skerry.status()["nodes"][0]["pid"]) < MAX_RESIDENT


def test_the_curl_command_works_when_pasted(platform: tuple[Skerry, str]) -> None:
    _, printed = platform
    command = printed[printed.index("curl") :].strip().replace("curl", "curl --silent --show-error")
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    events = done.stdout.split("\n\n")
    assert json.loads(events[0].removeprefix("data: "))["response"]
    assert "data: [DONE]" in events


@pytest.mark.slow
def test_a_file_of_ones_own_is_served_beside_the_default_model(
    skerry: Skerry, default_model: ModelFiles
) -> None:
    own = "@cf/me/own"
    added = skerry("models", "add", str(default_model.weights), "--as", own)
    assert added.returncode == 0, added.stderr
    skerry.up("--memory", "1G")
    assert [node["model"] for node in skerry.status()["nodes"]] == [MODEL, own]
    with skerry.ai() as ai:
        asked: dict[str, Any] = {"prompt": "Hello", "raw": True, "max_tokens": 8, "temperature": 0}
        assert ai.run(own, asked)["response"] == ai.run(MODEL, asked)["response"]


def test_env_can_be_evaluated(platform: tuple[Skerry, str]) -> None:
    skerry, _ = platform
    script = f"{skerry('env').stdout}\nenv | grep ^SKERRY_ | sort"
    done = subprocess.run(
        ["sh", "-c", script], env=skerry.environ, capture_output=True, text=True, check=True
    )
    config = json.loads((skerry.home / "config.json").read_text())
    exported = [line for line in done.stdout.splitlines() if "SKERRY_HOME" not in line]
    assert exported == [
        f"SKERRY_ACCOUNT_ID={config['account_id']}",
        f"SKERRY_API_TOKEN={config['api_token']}",
        f"SKERRY_BASE_URL={config['url']}",
    ]
    assert shlex.split(skerry("env").stdout)[0] == "export"


def test_a_stream_may_finish_before_down(skerry: Skerry) -> None:
    skerry.up()
    with (
        skerry.ai() as ai,
        ai.run(MODEL, {"prompt": "Hello", "max_tokens": 400, "seed": 1}, stream=True) as chunks,
    ):
        first = next(chunks)
        down = subprocess.Popen(
            [sys.executable, "-m", "skerry", "down"],
            env=skerry.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        rest = list(chunks)
        assert first.response or rest
        assert rest[-1].usage.completion_tokens >= 1
    assert down.wait(SECONDS) == 0


def test_a_prompt_from_standard_input(platform: tuple[Skerry, str]) -> None:
    skerry, _ = platform
    told = skerry("run", MODEL, "Hello", "--max-tokens", "6", "--seed", "1")
    piped = subprocess.run(
        [sys.executable, "-m", "skerry", "run", MODEL, "-", "--max-tokens", "6", "--seed", "1"],
        env=skerry.environ,
        input="Hello",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert piped.stdout == told.stdout != "\n"


def test_chat_in_a_terminal(platform: tuple[Skerry, str]) -> None:
    skerry, _ = platform
    terminal, inside = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "skerry", "chat", MODEL, "--max-tokens", "4"],
        env=skerry.environ | {"TERM": "dumb"},
        stdin=inside,
        stdout=inside,
        stderr=subprocess.DEVNULL,
    )
    os.close(inside)

    def read_to_prompt() -> str:
        text = b""
        while not text.endswith(b"> "):
            text += os.read(terminal, 1024)
        return text.decode()

    read_to_prompt()
    for line in ("Hello", "/reset", "Hello"):
        os.write(terminal, line.encode() + b"\n")
        lines = read_to_prompt().splitlines()
        assert lines[0].endswith(line)
        assert (len(lines) > 2) == (line == "Hello")  # an answer, or at once the next prompt
    os.write(terminal, b"/exit\n")
    assert process.wait(SECONDS) == 0
    os.close(terminal)
