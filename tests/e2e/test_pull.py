"""`skerry models pull` as a new user runs it, against a hub on loopback."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.command import Skerry
from tests.regions.models.hub_server import (
    GRANTED,
    NOT_GRANTED,
    LocalHub,
    Repo,
    eventually,
    serving,
)
from tests.regions.tiny_model import write_openable

MIB = 1 << 20
NAME = "hf:me/tiny"
ID = "@cf/me/tiny"


@pytest.fixture
def weights(tmp_path: Path) -> bytes:
    """A model that opens, as long as a real one of five pieces."""
    tail = random.Random(1).randbytes(37 * MIB)  # behind the tensors, where nobody looks
    return write_openable(tmp_path / "made.gguf").read_bytes() + tail


@pytest.fixture
def hub(weights: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with serving(LocalHub({"me/tiny": Repo({"tiny-Q4_K_M.gguf": weights})})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_HOME", "/nonexistent")
        yield hub


@pytest.fixture
def skerry(tmp_path: Path) -> Iterator[Skerry]:
    skerry = Skerry(tmp_path / "home")
    skerry.home.mkdir(mode=0o700)
    yield skerry
    assert skerry("down", "--timeout", "5").returncode == 0


def begin(skerry: Skerry, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "skerry", *arguments],
        env=skerry.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_pull_list_show_serve_and_remove(skerry: Skerry, hub: LocalHub) -> None:
    done = skerry("models", "pull", NAME, "--as", ID)
    assert done.returncode == 0, done.stderr
    assert f"{ID}: licence apache-2.0, from hub:me/tiny@" in done.stderr
    assert "downloading tiny-Q4_K_M.gguf" in done.stderr
    listed = json.loads(skerry("models", "list", "--json").stdout)
    assert [each["installed"] for each in listed if each["id"] == ID] == [True]
    shown = json.loads(skerry("models", "show", ID, "--json").stdout)
    assert shown["source"] == f"hub:me/tiny@{hub.repos['me/tiny'].commit}"
    skerry.up(f"--model={ID}")
    with skerry.ai() as ai:
        assert ai.run(ID, {"prompt": "ab", "max_tokens": 3}).usage.completion_tokens == 3
    assert skerry("models", "remove", ID).returncode == 0
    assert ID not in skerry("models", "list").stdout
    assert list((skerry.home / "models" / ".blobs").iterdir()) == []


def test_a_pull_that_is_killed_goes_on_where_it_was(
    skerry: Skerry, hub: LocalHub, weights: bytes
) -> None:
    hub.hold_after = 21 * MIB
    first = begin(skerry, "models", "pull", NAME, "--as", ID)
    assert hub.held.wait(60)
    blobs = skerry.home / "models" / ".blobs"
    journals = lambda: [p.read_bytes().count(b"\n") for p in blobs.glob("*.journal")]  # noqa: E731
    eventually(lambda: any(count >= 2 for count in journals()))
    first.send_signal(signal.SIGKILL)
    first.communicate()
    hub.hold_after = None
    hub.release.set()
    before = hub.sent
    done = skerry("models", "pull", NAME, "--as", ID)
    assert done.returncode == 0, done.stderr
    assert hub.sent - before < len(weights)  # a piece at least was there
    assert skerry("models", "verify", ID).returncode == 0


@pytest.mark.slow
def test_two_pulls_at_once_fetch_the_file_once(
    skerry: Skerry, hub: LocalHub, weights: bytes
) -> None:
    hub.hold_after = 17 * MIB
    first = begin(skerry, "models", "pull", NAME, "--as", ID)
    assert hub.held.wait(60)
    second = begin(skerry, "models", "pull", NAME, "--as", "@cf/me/second")
    assert second.stderr is not None
    line = ""
    while "waiting for another download of tiny-Q4_K_M.gguf" not in line:
        line = second.stderr.readline()
        assert line
    hub.hold_after = None
    hub.release.set()
    for each in (first, second):
        _, said = each.communicate(timeout=60)
        assert each.returncode == 0, said
    head = 2 * MIB  # each process looks at the header
    assert hub.sent <= len(weights) + head + 2 * MIB


def test_a_corrupt_part_is_downloaded_again(skerry: Skerry, hub: LocalHub) -> None:
    hub.corrupt_later = 1  # a piece; the header, which is looked at first, stays right
    done = skerry("models", "pull", NAME, "--as", ID)
    assert done.returncode == 0, done.stderr
    assert "arrived corrupt: downloading it again" in done.stderr
    assert skerry("models", "verify", ID).returncode == 0


def test_a_gated_model_without_and_with_a_token(
    skerry: Skerry, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["me/tiny"].gated = True
    done = skerry("models", "pull", NAME, "--as", ID)
    assert done.returncode == 1
    assert f"accept its licence at {hub.endpoint}/me/tiny" in done.stderr
    monkeypatch.setenv("HF_TOKEN", NOT_GRANTED)
    done = skerry("models", "pull", NAME, "--as", ID)
    assert "your token's account has no access" in done.stderr
    monkeypatch.setenv("HF_TOKEN", GRANTED)
    done = skerry("models", "pull", NAME, "--as", ID)
    assert done.returncode == 0, done.stderr
    assert GRANTED not in done.stdout + done.stderr
    assert {each.server for each in hub.asked if each.has_token} == {"hub"}


def test_no_room_on_the_disk(skerry: Skerry, hub: LocalHub) -> None:
    hub.claims = {"tiny-Q4_K_M.gguf": 1 << 42}  # bytes
    done = skerry("models", "pull", NAME, "--as", ID)
    assert done.returncode == 1
    assert "4,398.0 GB are to be downloaded" in done.stderr
    assert "Make room" in done.stderr


def test_offline(skerry: Skerry, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = skerry("models", "pull", NAME)
    assert done.returncode == 1
    assert "HF_HUB_OFFLINE is set" in done.stderr
    assert hub.asked == []


def test_a_refused_id_says_why(skerry: Skerry) -> None:
    done = skerry("models", "pull", "@cf/microsoft/phi-2")
    assert done.returncode == 1
    assert "the architecture phi is not supported. Try @cf/microsoft/phi-4-mini" in done.stderr
