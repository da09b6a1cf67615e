"""Prefix directories, and nodes that report to them."""

from __future__ import annotations

from collections import defaultdict

from tests.regions.routing.kernels import load_router_kernels

from skerry_regions.prefix_news import PrefixDelta, PrefixSnapshot
from skerry_regions.routing.block_index import DirectoryLimits
from skerry_regions.routing.prefixes import PrefixDirectory

UNIVERSE = [bytes([i]) * 16 for i in range(12)]

Message = PrefixDelta | PrefixSnapshot


def make(kind: str, limits: DirectoryLimits | None = None) -> PrefixDirectory:
    """A directory with either index."""
    directory = PrefixDirectory(limits)
    if kind == "compiled":
        load_router_kernels()
        from skerry_regions.routing.fast.index import CompiledIndex

        directory.move_to(CompiledIndex(directory.limits))
    return directory


def wanted(directory: PrefixDirectory) -> list[str]:
    """Nodes that should be asked for a snapshot."""
    return [name for name in ("a", "b", "c", "n") if directory.wants_snapshot(name)]


def believed_of_all(directory: PrefixDirectory) -> dict[str, dict[bytes, str]]:
    """What the directory thinks each node holds, by asking for each digest alone."""
    found: dict[str, dict[bytes, str]] = defaultdict(dict)
    for digest in UNIVERSE:
        for node, hit in directory.match_all([digest]).items():
            found[node][digest] = "file" if hit.in_file else "memory"
    return found


def believed(directory: PrefixDirectory, node: str) -> dict[bytes, str]:
    return believed_of_all(directory)[node]


def delta(seq: int, *sealed: int, incarnation: int = 1, evicted: tuple[int, ...] = ()) -> Message:
    return PrefixDelta(
        node="a",
        incarnation=incarnation,
        seq=seq,
        sealed=tuple(UNIVERSE[i] for i in sealed),
        evicted=tuple(UNIVERSE[i] for i in evicted),
    )
