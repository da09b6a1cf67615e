"""`skerry up` where things are otherwise: taken ports, lost engines, no platform, no terminal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, is_alive

from skerry import Unavailable

pytestmark = pytest.mark.model


def test_after_kill_9_it_starts_again_with_the_same_token(skerry: Skerry) -> None:
    skerry.up()
    before = json.loads((skerry.home / "config.json").read_text())
    pid = skerry.status()["edges"][0]["pid"]
    os.kill(pid, signal.SIGKILL)
    while is_alive(pid):
        os.sched_yield()
    gone = skerry("status")
    assert gone.returncode == 1
    assert "not running" in gone.stderr
    skerry.up()
    after = json.loads((skerry.home / "config.json").read_text())
    assert (after["account_id"], after["api_token"]) == (before["account_id"], before["api_token"])
    assert skerry.status()["edges"][0]["pid"] != pid
    with skerry.ai() as ai:
        assert ai.run(MODEL, {"prompt": "Hello", "max_tokens": 3}).usage.completion_tokens <= 3


CRASH_ONCE = """
from skerry_core.runners.toy import ToyRunner

def crash(self, batch):
    raise RuntimeError("out of order")

ToyRunner.execute = crash
from skerry_cli import main
main()
"""


def test_a_lost_engine_begins_anew_at_the_same_address(skerry: Skerry) -> None:
    with (skerry.home.parent / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", CRASH_ONCE, "up", "--port=0", "--runner=toy", "--log=text"],
            env=skerry.environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    while not skerry.status()["url"]:
        assert process.poll() is None
        time.sleep(0.05)
    with skerry.ai() as ai:
        with pytest.raises(Unavailable):
            ai.run(MODEL, {"prompt": "Hello"}, max_retries=0)
        while "ready again" not in (skerry.home.parent / "log").read_text():
            assert process.poll() is None
            time.sleep(0.05)
        assert ai.run(MODEL, {"prompt": "Hello", "max_tokens": 3})["response"]
    assert skerry("down").returncode == 0
    assert process.wait(SECONDS) == 0
    written = (skerry.home.parent / "log").read_text()
    assert "starting again: the engine of" in written
    assert written.count("curl") == 1


def test_chat_needs_a_terminal(skerry: Skerry) -> None:
    done = skerry("chat")
    assert done.returncode == 1
    assert "skerry run" in done.stderr


def test_in_the_foreground_until_ctrl_c(skerry: Skerry) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "skerry", "up", "--port=0", "--runner=toy", "--log=text"],
        env=skerry.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    printed = [process.stdout.readline()]
    while "curl" not in printed[-1]:
        printed.append(process.stdout.readline())
    assert "ready" in printed[0]
    assert any("Ctrl-C" in line for line in printed)
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert "Stopped." in complaints
    assert "Traceback" not in complaints


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_a_taken_port_is_told_before_anything_is_loaded(skerry: Skerry, detach: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = skerry("up", "--runner", "toy", "--port", port, *detach)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert "--port 0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--model", "@cf/no/such"], "`skerry models list`"),
        (["--memory", "10M"], "--memory 10 MiB is too small"),
        (["--host", ""], "--host 0.0.0.0"),
        (["--host", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["--port", "70000"], "0 to 65535"),
        (["--kv-tokens", "0"], "whole number"),
    ],
)
def test_a_start_that_cannot_be_says_what_to_do(
    skerry: Skerry, arguments: list[str], complaint: str
) -> None:
    done = skerry("up", "--runner", "toy", "--port", "0", *arguments)
    assert done.returncode in (1, 2)
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_platform_a_command_says_how_to_get_one(skerry: Skerry) -> None:
    for command in (["run", MODEL, "Hello"], ["status"], ["env"]):
        done = skerry(*command)
        assert (done.returncode, done.stdout) == (1, "")
        assert "skerry up" in done.stderr
        assert "Traceback" not in done.stderr


def test_help_shows_an_example(skerry: Skerry) -> None:
    done = skerry("up", "--help")
    assert done.returncode == 0
    assert "skerry up" in done.stdout.partition("example:")[2]
