"""A process that keeps nodes, as an actor of Ray's does: orders come in by lines, `state` goes out.

python -m tests.regions.control.ray.keeping NODE [HOST]
"""

from __future__ import annotations

import base64
import dataclasses
import sys
from typing import Any

import msgspec
from tests.regions.control.ray.support import launch

from skerry_regions.control.reconcile.programs import LaunchPrograms
from skerry_regions.control.reconcile.ray.keeper import Keeper


def main(node: str, host: str = "127.0.0.1") -> None:
    """Keep a node that is the Python program `node`."""
    whole = LaunchPrograms.program

    def program(self: LaunchPrograms, *arguments: Any) -> Any:
        lifeline = str(arguments[-1])
        command = [sys.executable, "-I", "-c", node, lifeline]
        return dataclasses.replace(whole(self, *arguments), command=command)

    LaunchPrograms.program = program  # type: ignore[method-assign]
    Keeper._install = lambda self: None  # type: ignore[method-assign]
    keeper = Keeper(msgspec.json.encode(launch()), 1, host)
    for line in sys.stdin:
        order, _, term = line.strip().partition(" ")
        if order == "drain":
            keeper.drain(int(term))
        sys.stdout.write(base64.b64encode(keeper.state(int(term))).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
