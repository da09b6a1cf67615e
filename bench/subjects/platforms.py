"""Platforms to be measured: `skerry up` as processes, with run-time state of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.subjects.models import home

NONE: Mapping[str, Path] = MappingProxyType({})
SLEEPING = Path(__file__).parents[1] / "workers" / "sleeping"


@dataclass(frozen=True)
class Platform:
    """A running one."""

    home: Path  # its state
    config: dict[str, Any]  # what `skerry up` leaves for clients
    status: dict[str, Any]  # as of its start

    @property
    def token(self) -> str:
        return str(self.config["api_token"])

    @property
    def pids(self) -> list[int]:
        """Of its edges and nodes, in order."""
        return sorted(int(each["pid"]) for kind in ("edges", "nodes") for each in self.status[kind])

    def route(self, path: str, edge: str | None = None) -> str:
        """URL of one of the account's routes, such as `v1/completions`, at the edge of a URL, or
        at the first one."""
        return (
            f"{edge or self.config['url']}/client/v4/accounts/{self.config['account_id']}/ai/{path}"
        )


def share_files(own: Path) -> None:
    """Give a home this machine's models and compiled kernels."""
    for kept in ("models", "cache"):
        (home() / kept).mkdir(parents=True, exist_ok=True)
        (own / kept).symlink_to(home() / kept)


@contextmanager
def platform(*arguments: str, added: Mapping[str, Path] = NONE) -> Generator[Platform]:
    """`skerry up` with these arguments, down in the end. Raises CalledProcessError.

    `added` are files of more models, by the ids that they are to have.
    """
    with tempfile.TemporaryDirectory() as own:
        share_files(Path(own))
        skerry, env = [sys.executable, "-m", "skerry"], {**os.environ, "SKERRY_HOME": own}
        for id_, file in added.items():
            add = [*skerry, "models", "add", str(file), "--as", id_]
            subprocess.run(add, env=env, check=True, stdout=subprocess.DEVNULL)
        up = [*skerry, "up", "--detach", *arguments]
        subprocess.run(up, env=env, check=True, stdout=subprocess.DEVNULL)
        try:
            config = json.loads((Path(own) / "config.json").read_text())
            status = json.loads(subprocess.check_output([*skerry, "status", "--json"], env=env))
            yield Platform(Path(own), config, status)
        finally:
            subprocess.run([*skerry, "down"], env=env, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def of_topology(topology: dict[str, Any], added: Mapping[str, Path] = NONE) -> Generator[Platform]:
    """`skerry up --topology`, likewise."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "topology.yaml"
        file.write_text(json.dumps(topology))  # JSON is YAML
        with platform("--topology", str(file), added=added) as made:
            yield made


@contextmanager
def sleeping_nodes(law: Sequence[float]) -> Generator[None]:
    """Have nodes of the toy model that start meanwhile sleep by a law (`bench/workers/sleeping`):
    seconds for a step, a prompt token, a pair, a stream and a context token."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "SKERRY_BENCH_LAW")}
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SLEEPING), before["PYTHONPATH"])))
    os.environ["SKERRY_BENCH_LAW"] = ",".join(map(str, law))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
