"""What calls of the library launch, and how it is changed from outside.

A change is of an option of one kernel's launches (warps, stages, a tile's size), whose grid follows
it, or of a module's constant that the library reads when it launches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

import triton
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

_WARPS = 1, 2, 4, 8, 16
_STAGES = 2, 3, 4, 5, 6
_DEFAULTS = {"num_warps": 4, "num_stages": 3}  # of Triton, where a launch says nothing
_LOOPS = "INNER", "GROUPS", "WORDS", "TILE"  # what has one of these goes through several
_DEPTHS = "INNER", "LANES", "GROUPS"  # tiles that cut no side of a grid
_LEAST_TILE = 16  # what tensor cores take
_SIDES = {
    "OUTPUTS": 0,
    "ROWS": 1,
}  # of a product's grid


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel, as the library makes it."""

    kernel: str
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]  # by name, options too


@dataclass(frozen=True)
class Change:
    """One option or constant that is another one."""

    owner: str | ModuleType  # a kernel's name, or whose constant it is
    name: str
    value: Any

    def __str__(self) -> str:
        owner = self.owner if isinstance(self.owner, str) else self.owner.__name__.split(".")[-1]
        return f"{owner}.{self.name}={self.value}"


def launches_of(run: Callable[[], object]) -> list[Launch]:
    """Run something once; return its launches, one of each kernel."""
    found: dict[str, Launch] = {}

    def record(launch: Launch) -> Launch:
        return found.setdefault(launch.kernel, launch)

    with _intercepted(record):
        run()
    return list(found.values())


@contextmanager
def changed(changes: Sequence[Change]) -> Generator[None]:
    """Have the library launch with other numbers meanwhile."""
    options = [change for change in changes if isinstance(change.owner, str)]

    def apply(launch: Launch) -> Launch:
        own = {change.name: change.value for change in options if change.owner == launch.kernel}
        return _with_options(launch, own)

    with ExitStack() as stack:
        for change in changes:
            if isinstance(change.owner, ModuleType):
                stack.enter_context(patch.object(change.owner, change.name, change.value))
        stack.enter_context(_intercepted(apply))
        yield


def candidates_of(launch: Launch) -> list[Change]:
    """Return changes worth a try: the warps' neighbours, all usual stages of what loops over loads,
    and half and twice of a product's tiles."""
    told = launch.arguments
    warps, stages = (told.get(name, default) for name, default in _DEFAULTS.items())
    wanted = {"num_warps": [n for n in _WARPS if n in (warps // 2, 2 * warps)]}
    if any(name in told for name in _LOOPS):
        wanted["num_stages"] = [n for n in _STAGES if n != stages]
    if inner := [name for name in _DEPTHS if name in told]:
        for name in (*inner, *_SIDES):
            sizes = [size for size in (told[name] // 2, 2 * told[name]) if size >= _LEAST_TILE]
            if name in inner or _side(launch, name) is not None:
                wanted[name] = sizes
            elif told[name.lower()] <= told[name]:  # one tile has all, whatever the grid is
                wanted[name] = [size for size in sizes if told[name.lower()] <= size]
    return [Change(launch.kernel, name, each) for name, values in wanted.items() for each in values]


def _side(launch: Launch, tile: str) -> int | None:
    """Return the side of the grid that is a size over the tile that has its name, of several."""
    size, width, side = launch.arguments[tile.lower()], launch.arguments[tile], _SIDES[tile]
    count = triton.cdiv(size, width)
    return side if count > 1 and launch.grid[side : side + 1] == (count,) else None


def _with_options(launch: Launch, options: Mapping[str, int]) -> Launch:
    """Change options, and the grid with them."""
    grid = list(launch.grid)
    for name in _SIDES.keys() & options.keys():
        if (side := _side(launch, name)) is not None:
            grid[side] = triton.cdiv(launch.arguments[name.lower()], options[name])
    return Launch(launch.kernel, tuple(grid), {**launch.arguments, **options})


@contextmanager
def _intercepted(change: Callable[[Launch], Launch]) -> Generator[None]:
    """Have every launch go through a function, in the interpreter too."""
    with ExitStack() as stack:
        for kind in (JITFunction, InterpretedFunction):
            stack.enter_context(patch.object(kind, "run", _through(kind.run, change)))
        yield


def _through(run: Any, change: Callable[[Launch], Launch]) -> Any:
    def launch(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        names = kernel.arg_names
        told = {**dict(zip(names, args, strict=False)), **options}
        made = change(Launch(kernel.__name__, tuple(grid), told))
        positional = [made.arguments[name] for name in names[: len(args)]]
        rest = {n: v for n, v in made.arguments.items() if n not in names[: len(args)]}
        return run(kernel, *positional, grid=made.grid, warmup=warmup, **rest)

    return launch
