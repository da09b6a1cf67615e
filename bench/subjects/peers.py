"""Peers live in environments of their own, and are driven over a pipe of JSON lines.

A worker reads one request per line from standard input and answers with one line: so peer and
Skerry run in like conditions, one at a time, interleaved, each timing only its own work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("SKERRY_BENCH_CACHE", ROOT / ".cache" / "bench"))

WITHOUT_AMX = "llama-cpp-python-without-amx"  # what is built on a CPU that has no tiles

REQUIREMENTS = {
    # Built from source for this very CPU: about a quarter of an hour on two cores, once.
    "llama-cpp-python": ["llama-cpp-python==0.3.36", "numpy"],
    WITHOUT_AMX: ["llama-cpp-python==0.3.36", "numpy"],
    # Prebuilt wheels of llama.cpp with its HTTP server.
    "xllamacpp": ["xllamacpp==2026.10.11549"],
    # PyPI's torch brings CUDA along, some gigabytes; a CPU wheel in pip's find-links goes before.
    "sentence-transformers": ["sentence-transformers==6.2.0", "torch==2.13.0"],
    # Its proxy, some 700 MB with all that it depends on.
    "litellm": ["litellm[proxy]==1.106.2"],
}


def python_of(peer: str) -> Path:
    """Interpreter of the peer's environment, made on first use."""
    home = CACHE / peer
    python = home / "bin" / "python"
    stamp = home / "installed"
    wanted = " ".join(REQUIREMENTS[peer])
    if not stamp.exists() or stamp.read_text() != wanted:
        sys.stderr.write(f"installing {wanted} into {home} (once)…\n")
        venv.create(home, with_pip=True)
        command = [python, "-m", "pip", "install", "-q", "--no-cache-dir", *REQUIREMENTS[peer]]
        subprocess.run(command, check=True, env=os.environ | _build_flags(peer))
        stamp.write_text(wanted)
    return python


def _build_flags(peer: str) -> dict[str, str]:
    """Flags of compilers, as environment variables.

    GCC before 12.4 believes that loading a configuration of AMX's tiles reads 8 of its 64 bytes,
    and leaves the others out (GCC bug 114098): llama.cpp then dies of a protection fault.
    """
    if peer == WITHOUT_AMX:
        flags = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    else:
        header = CACHE / "tile_config.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(_TILE_CONFIG)
        flags = f"-include {header}"
    return {name: f"{os.environ.get(name, '')} {flags}" for name in ("CFLAGS", "CXXFLAGS")}


_TILE_CONFIG = """
#if defined(__AMX_TILE__)
#include <immintrin.h>
#undef _tile_loadconfig
#define _tile_loadconfig(at) \\
    __asm__ volatile("ldtilecfg\\t%X0" ::"m"(*(const char(*)[64])(at)))
#endif
"""


class Worker:
    """A child process that answers requests one at a time."""

    def __init__(self, name: str, command: list[str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, **request: Any) -> dict[str, Any]:
        """Send one request and wait for its answer. Raises RuntimeError when the worker died."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError(f"{self.name}: no pipe to the worker")
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: the worker ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=30)
