"""The platforms that an agent is run against: one process, split pools, three regions."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import yaml

from bench.subjects.long_context import LONG_CONTEXT, long_context_file
from bench.subjects.models import home
from bench.subjects.platforms import Platform, of_topology, platform

THREADS = 2  # of each process that computes
KV_BLOCKS = 2800  # of each node of many: an account may keep a quarter, 44,800 tokens


@dataclass
class Target:
    """A kind of platform; `platform` is there while it is `running`."""

    name: str
    _start: Callable[[], AbstractContextManager[Platform]]
    _platform: Platform | None = None

    @property
    def platform(self) -> Platform:
        if self._platform is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._platform

    @contextmanager
    def running(self) -> Generator[None]:
        with self._start() as self._platform:
            yield


def targets(*, is_quick: bool) -> list[Target]:
    """One process, and unless it is to be quick the others too."""
    added = {LONG_CONTEXT: long_context_file(home() / "shapes")}
    one = ("--model", LONG_CONTEXT, "--threads", str(THREADS), "--port", "0")
    found = [Target("one process", partial(platform, *one, added=added))]
    if not is_quick:
        found += [
            Target("split.yaml", partial(of_topology, _split(), added=added)),
            Target("three regions", partial(of_topology, _regions(), added=added)),
        ]
    return found


def _split() -> dict[str, Any]:
    """`examples/split.yaml`, with the model of the bench in its pools for text."""
    with open("examples/split.yaml") as file:
        topology: dict[str, Any] = yaml.safe_load(file)
    pools = [pool for pool in topology["pools"] if pool["role"] != "hybrid"]
    model = {"model": LONG_CONTEXT, "threads": THREADS, "kv_blocks": KV_BLOCKS}
    topology["pools"] = [pool | model for pool in pools]
    topology["edges"] = [edge | {"port": 0} for edge in topology["edges"]]
    return topology


def _regions() -> dict[str, Any]:
    """Three regions with a node and an edge each, some 30 to 90 ms apart."""
    names = {"fra": [50.0, 8.6], "iad": [39.0, -77.5], "nrt": [35.8, 140.4]}
    return {
        "regions": [{"name": name, "coordinates": place} for name, place in names.items()],
        "pools": [
            {"name": "gpu", "region": name, "role": "hybrid", "model": LONG_CONTEXT,
             "threads": THREADS, "kv_blocks": KV_BLOCKS}
            for name in names
        ],
        "edges": [{"name": f"edge-{name}", "region": name, "port": 0} for name in names],
    }  # fmt: skip
