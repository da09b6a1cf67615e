"""The `skerry` command as a process, with a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from skerry import AI
from skerry_cli.home.instance import running
from skerry_cli.home.state import Home
from skerry_cli.observe.status import read_status
from skerry_regions.models.model_files import ModelFiles

MODEL = "@cf/huggingfacetb/smollm2-135m-instruct"
ROOT = Path(__file__).parents[2]
SECONDS = 240  # for any command; only the first start ever, which compiles, needs half a minute


@dataclass(frozen=True)
class Skerry:
    """The `skerry` command with a home of its own."""

    home: Path
    registry: str = ""  # URL of a server; empty: a file of the home
    state: str = ""  # URL of servers; empty: files of the home

    @property
    def environ(self) -> dict[str, str]:
        folders = ("edge", "core", "regions", "sdk", "infra/terraform/provider")
        roots = [str(ROOT / name) for name in folders]
        kept = {name: value for name, value in os.environ.items() if "SKERRY" not in name}
        named = {"SKERRY_REGISTRY": self.registry, "SKERRY_STATE": self.state}
        elsewhere = {name: url for name, url in named.items() if url}
        own = {"SKERRY_HOME": str(self.home), "PYTHONPATH": os.pathsep.join(roots)}
        return kept | own | elsewhere

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "skerry", *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def up(self, *arguments: str, runner: str = "toy") -> str:
        """Start in the background on a free port; what was printed."""
        done = self("up", "--detach", "--port", "0", "--runner", runner, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        """Return what `skerry status --json` prints, without another process for each look."""
        home = Home(self.home)
        found: dict[str, Any] = msgspec.to_builtins(read_status(home, running(home)))
        found.pop("notes", None)
        return found

    def ai(self) -> AI:
        config = json.loads((self.home / "config.json").read_text())
        return AI(
            base_url=config["url"], account_id=config["account_id"], api_token=config["api_token"]
        )


def new_home(parent: Path, default_model: ModelFiles) -> Skerry:
    """A home where the default model is installed."""
    home = parent / "home"
    (home / "models").mkdir(mode=0o700, parents=True)
    (home / "models" / default_model.directory.name).symlink_to(default_model.directory)
    return Skerry(home)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or read
        return False
    return state != "Z"


def until(condition: Callable[[], Any]) -> Any:
    """Wait for something that other processes bring about; the first truthy value."""
    deadline = time.monotonic() + SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
    return value
