"""What the control plane and a cluster's driver say to each other, by turns: a line of JSON each.

    control plane   RayOrders    what is to be done, again until a report shows it
    driver          RayReport    what was there before it was done

Ray's own connections carry pickles within its cluster; none comes out of it on this one.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from skerry_regions.control.planning.launcher import Launch
from skerry_regions.process.launch_folder import LaunchRecord
from skerry_regions.registry import Count

VERSION = 1
MAX_LINE = 8 << 20
MAX_NODES = 4096  # of one cluster

Short = Annotated[str, Meta(max_length=256)]
Words = Annotated[str, Meta(max_length=16_384)]
Names = Annotated[tuple[Short, ...], Meta(max_length=MAX_NODES)]


class RayOrders(Struct, frozen=True, kw_only=True):
    """By name and idempotent. Those of a lower term than a keeper has seen are not followed."""

    version: int = VERSION
    term: Count
    start: Annotated[tuple[Launch, ...], Meta(max_length=MAX_NODES)] = ()
    drain: Names = ()
    stop: Names = ()


class NodeEnd(Struct, frozen=True, kw_only=True):
    """How a node ended, or why it could not start."""

    seconds: float = 0.0  # that it ran
    status: int | None = None
    log: Words = ""
    last_words: Words = ""
    refused: Words = ""  # why it could not start


class KeeperState(Struct, frozen=True, kw_only=True):
    """What a keeper says of its node. Times are the boot clock's of its machine."""

    record: LaunchRecord
    pid: Count = 0  # 0: not forked yet
    now: float
    healthy_at: float
    end: NodeEnd | None = None
    term: Count  # the highest that it was called with


class RayReport(Struct, frozen=True, kw_only=True):
    """What keepers say that answer, and which do not: they begin, or are cut off."""

    version: int = VERSION
    keepers: Annotated[tuple[KeeperState, ...], Meta(max_length=MAX_NODES)] = ()
    silent: Names = ()
    refused: dict[Short, Words] = {}  # why a node could not be ordered, by name
    away: Words = ""  # why nothing can be said of the cluster
    deposed_by: Count = 0  # a higher term that a keeper has seen; nothing was done
