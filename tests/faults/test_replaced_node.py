"""A node is frozen, another takes its name, the first wakes: never are both sent streams."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import MODEL, Skerry, new_home, until
from tests.regions.drivers.nats_server import NatsServer

from skerry import AI
from skerry_cli.home.shared_state import open_registry
from skerry_cli.home.state import Home
from skerry_regions.models.model_files import ModelFiles

pytestmark = [pytest.mark.model, pytest.mark.slow]

ASKED: dict[str, Any] = {"prompt": "The sea is", "raw": True, "seed": 7, "max_tokens": 32}


class Started:
    """A process of a home, with its log."""

    def __init__(self, skerry: Skerry, log: Path, *command: str) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "skerry", *command],
                env=skerry.environ, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip

    def ready_at(self) -> str:
        def told() -> re.Match[str] | None:
            assert self.process.poll() is None, self.log.read_text()
            return re.search(r"is ready at (\S+)\.\n", self.log.read_text())

        found: re.Match[str] = until(told)
        return found[1]


@pytest.fixture(params=["sqlite", "nats"])
def homes(
    tmp_path: Path, default_model: ModelFiles, request: pytest.FixtureRequest
) -> Iterator[list[Skerry]]:
    """One home for three processes, or three over NATS."""
    if request.param == "sqlite":
        yield [new_home(tmp_path, default_model)] * 3
        return
    server, found, key = NatsServer(tmp_path), list[Skerry](), secrets.token_bytes(32)
    for name in "abc":
        (tmp_path / name).mkdir()
        found.append(replace(new_home(tmp_path / name, default_model), registry=server.url))
        key_file = found[-1].home / "cluster.key"
        key_file.touch(mode=0o600)
        key_file.write_bytes(key)
    yield found
    server.stop()


@contextmanager
def started(skerry: Skerry, log: Path, *command: str) -> Generator[Started]:
    each = Started(skerry, log, *command)
    try:
        yield each
    finally:
        each.process.send_signal(signal.SIGCONT)
        each.process.terminate()
        each.process.wait(60)


def test_a_frozen_node_is_replaced_and_ends_when_it_wakes(
    homes: list[Skerry], tmp_path: Path
) -> None:
    one, other, third = homes
    registry = open_registry(Home(third.home), third.environ)

    def node(skerry: Skerry, name: str) -> tuple[Skerry, Path, *tuple[str, ...]]:
        return (
            skerry, tmp_path / f"{name}.log", "node", "--id", "n-1", "--model", MODEL, "--runner",
            "toy", "--threads", "1", "--file-tier", "none", "--address", "tcp:127.0.0.1:0",
            "--control", f"unix:{tmp_path / name}.control",
        )  # fmt: skip

    with ExitStack() as stack:
        stack.callback(registry.close)
        first = stack.enter_context(started(*node(one, "first")))
        first_at = first.ready_at()
        edge = stack.enter_context(
            started(third, tmp_path / "edge.log", "edge", "--id", "e-1", "--model", MODEL,
                    "--port", "0", "--hold")
        )  # fmt: skip
        url = edge.ready_at()
        made = third("tokens", "create", "--account", "new")
        account = re.search(r"of account ([0-9a-f]{32})", made.stderr)
        assert account is not None, made.stderr
        ai = stack.enter_context(
            AI(base_url=url, account_id=account[1], api_token=made.stdout.strip())
        )
        answer = ai.run(MODEL, ASKED)["response"]
        answers, failures, over = list[str](), list[Exception](), threading.Event()

        def ask() -> None:
            while not over.is_set():
                try:
                    answers.append(ai.run(MODEL, ASKED)["response"])
                except Exception as error:
                    failures.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        stack.callback(asking.join)
        stack.callback(over.set)
        os.kill(first.process.pid, signal.SIGSTOP)
        second = stack.enter_context(started(*node(other, "second")))
        second_at = second.ready_at()

        def addresses() -> list[str]:
            return [each.address for each in registry.members() if each.kind == "node"]

        until(lambda: addresses() == [second_at])
        assert first_at != second_at
        num_answers = len(answers)
        until(lambda: len(answers) > num_answers + 2)
        os.kill(first.process.pid, signal.SIGCONT)
        assert first.process.wait(60) == 0
        assert "n-1 runs elsewhere by now" in first.log.read_text()
        assert addresses() == [second_at]
        num_answers = len(answers)
        until(lambda: len(answers) > num_answers + 2)
        over.set()
        asking.join()
        assert (failures, set(answers)) == ([], {answer})
