"""From the start of a process to its first token, and the memory that it takes until then.

    python -m bench.serving.start [--quick] [--first] [--json FILE]

    local       a process with an engine of its own; parts add up to "first token", imports of the
                interpreter itself apart
    over HTTP   `skerry up`, which serves an encoder besides, asked as soon as it is healthy

Models and kernels are there already; `--first` also starts once with neither kernels nor packed
weights, as a machine does the first time of all. Seconds suffer from foreign load, which cannot be
told apart here; processor time does so less. Memory is that of the process with its first token
made: weights, kernels, libraries, and the 32 MiB of KV that are brought in ahead of their use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.engine import THREADS
from bench.measuring import machine, stats
from bench.measuring.load import stream
from bench.subjects.models import MODEL, default_model, home
from bench.subjects.platforms import share_files

LOCAL, HTTP = "local", "over HTTP"
PATIENCE = 600.0  # seconds that a start may take


def local_start(folder: Path) -> dict[str, float]:
    """Seconds of a start by itself, in all and by part, and MiB of memory."""
    command = [sys.executable, "-m", "bench.workers.local_start", str(folder), str(THREADS)]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"a local start failed with status {process.returncode}")
    told: dict[str, Any] = json.loads(line)
    parts = {f"of it {name}": value for name, value in told["marks"].items()}
    weights = {"weights, mapped once more by themselves": told["weights"]}
    return {"to the first token": seconds} | parts | weights | told["MiB"]


def http_start(folder: Path) -> dict[str, float]:
    """Seconds until `skerry up` is healthy, and until its first token; MiB of memory."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "skerry", "up", "--port", str(port)]
    started = time.perf_counter()
    with subprocess.Popen(
        [*command, "--threads", str(THREADS)],
        env={**os.environ, "SKERRY_HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            _await_health(process, port)
            ready = time.perf_counter() - started
            config = json.loads((folder / "config.json").read_text())
            url = (
                f"{config['url']}/client/v4/accounts/{config['account_id']}/ai/v1/chat/completions"
            )
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
            body |= {"stream": True, "max_tokens": 1}
            asyncio.run(stream(url, config["api_token"], body))
            seconds = time.perf_counter() - started
            memory = _memory(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
    return {"to the first token": seconds, "of it until healthy": ready} | memory


def _await_health(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.perf_counter() + PATIENCE
    while time.perf_counter() < deadline and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                if b" 200 " in connection.recv(64):
                    return
        except OSError:
            pass
        time.sleep(0.005)
    raise RuntimeError("skerry up did not become healthy")


def _memory(pid: int) -> dict[str, float]:
    words = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    return {name: int(words[words.index(f"{name}:") + 1]) / 1024 for name in ("Rss", "Pss")}


def _children_seconds() -> float:
    """CPU seconds of child processes that have ended, all threads."""
    return sum(os.times()[2:4])


def unit(figure: str) -> str:
    return "MiB" if figure in ("Rss", "Pss") else "s"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 rounds instead of 7")
    parser.add_argument("--first", action="store_true", help="also a first start of all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample to FILE")
    options = parser.parse_args()
    console = Console()
    description = machine.describe()
    default_model()
    starts = {LOCAL: local_start, HTTP: http_start}
    cells: dict[str, stats.Cell] = {}
    for number in range((3 if options.quick else 7) + 1):
        for name, start in starts.items():
            with tempfile.TemporaryDirectory() as own, console.status(f"round {number}: {name}"):
                share_files(Path(own))
                before = _children_seconds()
                figures = start(Path(own))
                figures["processor time until its end"] = _children_seconds() - before
            if number:  # the first one fills the caches
                for figure, value in figures.items():
                    cells.setdefault(figure, stats.Cell(figure, unit(figure))).add(name, value)
    for cell in cells.values():
        for name, samples in cell.samples.items():
            console.print(
                f"{name}: {cell.name} {cell.median(name):.2f} {cell.unit} "
                f"[{min(samples):.2f}..{max(samples):.2f}]"
            )
    if options.first:
        with tempfile.TemporaryDirectory() as own, console.status("the first start of all"):
            (Path(own) / "models").symlink_to(home() / "models")
            (Path(own) / "cache").mkdir()
            first = local_start(Path(own))
        console.print(f"the first start of all: {first['to the first token']:.1f} s")
        description |= {"first start": first}
    stats.write(options.json, {"machine": description, "rows": stats.rows(list(cells.values()))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
