"""Over how many ranks a model is divided where nobody says: as few as have room for it.

A rank has room for SHARE of its device's free memory. With `n` ranks each holds an nth of the
weights and of the KV, evenly enough:

    whole        weights + kv <= room of one device
    else n       for which (weights + kv) / n <= room of the nth largest device
    tensor n     over fast links, the least that divides the KV heads: every layer waits for two
                 sums of all ranks, which is little beside reading its weights only where a sum
                 takes some ten microseconds
    pipeline n   otherwise the least, where there are n layers: a step crosses each link once

All of it counts KV, as much as the node is to have.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from skerry_core.config import ModelConfig
from skerry_core.ranks import UNDIVIDED, Parallel

SHARE = 0.95  # of free memory: the rest is for what steps need meanwhile
FAST_LINK = 20e9  # bytes per second: PCIe 4.0 with 16 lanes, NVLink


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionNeed:
    """What a model takes of memory, and what of it can be divided."""

    weights: int  # bytes
    kv: int  # bytes, of all blocks
    num_layers: int
    num_kv_heads: int

    @classmethod
    def of(cls, model: ModelConfig, *, weights: int, kv: int) -> DivisionNeed:
        """Return that of a model whose weights and KV take so many bytes."""
        layers, heads = model.num_layers, model.num_kv_heads
        return cls(weights=weights, kv=kv, num_layers=layers, num_kv_heads=heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDevices:
    """What there is for ranks: free bytes of each device, or what a process may have on a host
    (none where nobody knows), and bytes per second between two."""

    memory: tuple[int, ...]
    link: float


@dataclass(frozen=True, slots=True)
class Division:
    """What was chosen, and why."""

    parallel: Parallel
    reason: str


def divide(need: DivisionNeed, devices: RankDevices, axes: Collection[str]) -> Division:
    """Choose a division along these axes. Where none has room the model stays whole: opening it
    says what lacks."""
    total = need.weights + need.kv
    rooms = sorted((SHARE * each for each in devices.memory), reverse=True)
    takes = f"{_gib(need.weights)} of weights and {_gib(need.kv)} of KV"
    if not rooms:
        return Division(UNDIVIDED, f"{takes}, and no device says what room it has")
    if total <= rooms[0]:
        return Division(UNDIVIDED, f"{takes} fit one device")
    why = f"{takes} do not fit one device with {_gib(max(devices.memory))} free"
    enough = [count for count, room in enumerate(rooms, 1) if total <= count * room]
    if "tensor" in axes and devices.link >= FAST_LINK:
        for count in enough:
            if need.num_kv_heads % count == 0:
                return Division(Parallel(tensor=count), f"{why}; {count} share each layer")
    if "pipeline" in axes and enough and enough[0] <= need.num_layers:
        count = enough[0]
        return Division(Parallel(pipeline=count), f"{why}; {count} have some layers each")
    return Division(UNDIVIDED, f"{why}, nor any number of the {len(rooms)} that there are")


def _gib(count: float) -> str:
    return f"{count / 2**30:.1f} GiB"
