"""The usage journal outlives `kill -9` of the process that writes it, and counts all once."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.command import MODEL, Skerry, new_home, until

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model


@pytest.fixture
def skerry(tmp_path: Path, default_model: ModelFiles) -> Skerry:
    return new_home(tmp_path, default_model)


def kill(pid: int) -> None:
    """End a process as a crash would, and wait until it is gone."""
    process = os.pidfd_open(pid)
    signal.pidfd_send_signal(process, signal.SIGKILL)
    select.select([process], [], [])
    os.close(process)


def num_counted(skerry: Skerry) -> int:
    """Rows of the journal, of requests that run still among them."""
    [path] = skerry.home.rglob("usage.db")
    with contextlib.closing(sqlite3.connect(path)) as database:
        (count,) = database.execute("SELECT COUNT(*) FROM usage").fetchone()
    return int(count)


def break_off(skerry: Skerry) -> None:
    """Kill the platform while it streams a second answer, which does not end by itself."""
    pid = int(skerry.status()["edges"][0]["pid"])
    config = json.loads((skerry.home / "config.json").read_text())
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Go on."}],
        "max_tokens": 8000,
        "ignore_eos": True,
        "stream": True,
    }
    url, headers = config["url"], {"authorization": f"Bearer {config['api_token']}"}
    with (
        httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client,
        client.stream("POST", "/v1/chat/completions", json=asked) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        until(lambda: num_counted(skerry) == 2)  # rows are written in batches
        kill(pid)
        with pytest.raises(httpx.TransportError):
            list(lines)


def test_after_kill_9_every_request_is_settled_once(skerry: Skerry) -> None:
    keyed = {"idempotency-key": "once"}
    asked: dict[str, Any] = {"prompt": "Hi", "max_tokens": 5}
    skerry.up()
    try:
        with skerry.ai() as ai:
            first = ai.run(MODEL, asked, extra_headers=keyed)
        break_off(skerry)
        skerry.up()
        with skerry.ai() as ai:
            again = ai.run(MODEL, asked, extra_headers=keyed)
        assert again["response"] == first["response"]
        [total] = json.loads(skerry("usage", "--format", "json").stdout)
    finally:
        skerry("down")
    assert (total["requests"], total["completed"], total["aborted"]) == (2, 1, 1)
    assert (total["running"], total["model"]) == (0, MODEL)
    assert total["cost"] > 0
