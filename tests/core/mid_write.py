"""A process that dies while it writes: what it leaves behind is for its successor to judge."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest


def kill_in_mid_write(script: str, path: Path, seconds: float, env: dict[str, str]) -> None:
    """Run Python code that gets `path` as its argument and prints a line once it writes for ever;
    kill it `seconds` after that."""
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, env=env
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"writing\n"
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(timeout=seconds)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
