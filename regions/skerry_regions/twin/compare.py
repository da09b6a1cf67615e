"""A scenario and its differences, over several seeds, on the same requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skerry_regions.twin.figures import Figures, figures
from skerry_regions.twin.run import TwinRun
from skerry_regions.twin.scenario import Scenario, ScenarioError, WhatIf, mistakes
from skerry_regions.twin.ways import ways_of
from skerry_regions.twin.workload import workload_of
from skerry_regions.twin.world import Built


def simulate(
    scenario: Scenario, base: Path, progress: Callable[[float], None] = lambda _: None
) -> tuple[Figures, float]:
    """Run a scenario once; return its figures, and the processor seconds of the run itself.

    Paths in it are relative to `base`. Raises `ScenarioError`, `TraceError`, `OSError` and
    ValueError.
    """
    built = Built(scenario, workload_of(scenario, base), ways_of(scenario, base))
    built.begin()
    run = TwinRun(built, progress)
    began = time.process_time()
    run.run()
    return figures(run), time.process_time() - began


def variants(scenario: Scenario) -> Iterator[Scenario]:
    """Yield the scenario, and each of its differences under its name. Raises `ScenarioError`."""
    yield replace(scenario, what_if=[])
    for number, what_if in enumerate(scenario.what_if):
        yield changed(scenario, what_if, f"what_if[{number}]")


def changed(scenario: Scenario, what_if: WhatIf, where: str) -> Scenario:
    """Return the scenario with a difference. Raises `ScenarioError`."""
    document: dict[str, Any] = msgspec.to_builtins(replace(scenario, what_if=[]))
    document["name"] = what_if.name
    for path in what_if.remove:
        holder, key = _find(document, path, f"{where}.remove")
        del holder[key]
    for path, value in what_if.change.items():
        holder, key = _find(document, path, f"{where}.change")
        holder[key] = value
    for key, entries in what_if.add.items():
        if not isinstance(document.get(key), list):
            raise ScenarioError(f"{where}.add: {key!r} is no list of a scenario")
        document[key] += entries
    try:
        result = msgspec.convert(document, Scenario)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{where}: {error}") from None
    for path, problem in mistakes(result):
        raise ScenarioError(f"{where}: {path}: {problem}")
    return result


def _find(document: dict[str, Any], path: str, where: str) -> tuple[Any, Any]:
    """Return what holds a path's last key, and the key; entries of lists go by name or number."""
    holder: Any = document
    *way, last = path.split(".")
    for part in way:
        holder = holder[_key(holder, part, path, where)]
    return holder, _key(holder, last, path, where)


def _key(holder: Any, part: str, path: str, where: str) -> Any:
    if isinstance(holder, dict) and part in holder:
        return part
    if isinstance(holder, list):
        for number, entry in enumerate(holder):
            if part == str(number) or (isinstance(entry, dict) and entry.get("name") == part):
                return number
    raise ScenarioError(f"{where}: {path!r}: there is no {part!r}")
