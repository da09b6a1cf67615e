"""LiteLLM's proxy as a server that a bench can ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Generator
from pathlib import Path

from bench.edge import body
from bench.measuring.load import concurrent
from bench.subjects.models import MODEL
from bench.subjects.peers import python_of
from bench.subjects.served import Served

PEER = "LiteLLM"
KEY = "sk-bench"
START_SECONDS = 120.0


@contextlib.contextmanager
def litellm(back_end: str, home: Path) -> Generator[Served]:
    """LiteLLM's proxy in an environment of its own, on a free port."""
    upstream = {"model": f"openai/{MODEL}", "api_base": f"{back_end}/v1", "api_key": "none"}
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": upstream}],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"telemetry": False, "request_timeout": 3600},
    }
    file = home / "litellm.yaml"
    file.write_text(json.dumps(config))  # which is YAML, too
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "AIOHTTP_CONNECTOR_LIMIT": "8192",  # connections to back ends, instead of 1000 …
        "AIOHTTP_CONNECTOR_LIMIT_PER_HOST": "8192",  # … and 500 to one
        "NO_PROXY": "127.0.0.1",
    }
    where = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    command = [python_of("litellm").with_name("litellm"), "--config", file, *where]
    with (home / "litellm.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=home, stdout=log, stderr=log)
    try:
        served = Served(f"http://127.0.0.1:{port}/v1/chat/completions", KEY, process.pid)
        _wait_until_it_answers(served, process, home / "litellm.log")
        yield served
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait_until_it_answers(served: Served, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            asyncio.run(concurrent(served.url, served.token, [body(0, 20, 1)]))
            return
        except (OSError, RuntimeError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{PEER}: {error}\n{log.read_text()[-4000:]}") from None
        time.sleep(0.5)
