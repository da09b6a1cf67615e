"""What a person sees at a terminal, and a program at a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import MODEL, SECONDS, Skerry, new_home

from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model


@pytest.fixture
def skerry(tmp_path: Path, default_model: ModelFiles) -> Iterator[Skerry]:
    skerry = new_home(tmp_path, default_model)
    yield skerry
    assert skerry("down", "--timeout", "5").returncode == 0


def at_a_terminal(skerry: Skerry, *arguments: str) -> str:
    """What a command shows at a terminal, without colours."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "skerry", *arguments],
        env=skerry.environ | {"TERM": "xterm", "COLUMNS": "200"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += (piece := os.read(ours, 65536))
        except OSError:  # the other end is closed
            break
        if not piece:
            break
    os.close(ours)
    assert process.wait(SECONDS) == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r\n", "\n")


def test_at_a_terminal_up_prints_sentences_and_run_a_hint(skerry: Skerry) -> None:
    shown = at_a_terminal(skerry, "up", "--detach", "--port", "0", "--runner", "toy")
    assert "Skerry is ready after" in shown
    assert f"skerry run {MODEL} 'Why is the sky blue?'" in shown
    first = at_a_terminal(skerry, "run", MODEL, "Hello", "--max-tokens", "4")
    assert f"skerry chat {MODEL}" in first
    again = at_a_terminal(skerry, "run", MODEL, "Hello", "--max-tokens", "4")
    assert "skerry chat" not in again  # it was told
    assert first.startswith(again)


def test_a_program_reads_json(skerry: Skerry) -> None:
    report = json.loads(skerry.up())
    config = json.loads((skerry.home / "config.json").read_text())
    assert {name: report[name] for name in ("url", "account_id", "api_token")} == {
        name: config[name] for name in ("url", "account_id", "api_token")
    }
    assert MODEL in report["models"]
    assert report["left_out"] == []


@pytest.mark.slow
def test_text_is_had_without_a_terminal_and_json_with_one(skerry: Skerry) -> None:
    assert "Skerry is ready after" in skerry.up("--log=text")
    skerry("down")
    shown = at_a_terminal(
        skerry, "up", "--detach", "--port", "0", "--runner", "toy", "--log", "json"
    )
    assert json.loads(shown.strip().splitlines()[-1])["example"] == MODEL
