"""What `skerry status` says of a topology's processes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from skerry_cli.home.control import NodeStatus
from skerry_regions.address import Address
from skerry_regions.control.planning.launcher import NodeSettings
from skerry_regions.process.pages import NoPage, page_of
from skerry_regions.process.supervisor import Supervised
from skerry_regions.registry import Member, Registry, RegistryUnavailable

STILL = "edges use the nodes of the topology"
ASK_SECONDS = 1.0  # for a node to say how it is


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node of a topology."""

    id: str
    settings: NodeSettings


class NodeAnswer(msgspec.Struct, frozen=True):
    """What a node says of itself."""

    node: Member
    edges: list[str]  # that are connected to it


def node_status(
    place: NodePlace, process: Supervised, answer: NodeAnswer | None, control: str
) -> NodeStatus:
    """Return a node's status: the supervisor knows whether it lives, the node itself what it
    does."""
    known = answer.node if answer is not None and answer.node.pid == process.pid else None
    draining = process.state == "ready" and known is not None and known.state == "draining"
    return NodeStatus(
        id=place.id,
        pid=process.pid,
        role=place.settings.role,
        region=place.settings.region,
        model=place.settings.model,
        state="draining" if draining else process.state,
        streams=known.streams if known is not None else 0,
        control=control,
    )


def trouble(process: Supervised) -> str:
    """Return what a person should know of a process; nothing when all is well."""
    if not process.restarts and process.state != "failed":
        return ""
    times = {0: "ended", 1: "restarted once"}.get(
        process.restarts, f"restarted {process.restarts} times"
    )
    what = f"{process.spec.id}: {times}{_ending(process.last_exit)}"
    if process.is_crash_loop:
        what += ", in a crash loop"
    return f"{what}; see {process.spec.log}"


def _ending(status: int | None) -> str:
    """Return how a process ended last, in words; nothing where that is not known."""
    if status is None:
        return ""
    if status >= 0:
        return f", last with status {status}"
    try:
        return f", last by {signal.Signals(-status).name}"
    except ValueError:
        return f", last by signal {-status}"


def without_edge(nodes: Mapping[str, Supervised], answers: Mapping[str, NodeAnswer]) -> list[str]:
    """Return a note on each node that runs well and that no edge has a connection to."""
    return [
        f"{id} serves no edge: it is ready, and none has reached it; see the log of an edge"
        for id, node in nodes.items()
        if node.state == "ready" and id in answers and not answers[id].edges
    ]


def registry_trouble(registry: Registry, ready: list[str]) -> str:
    """Return what a person should know of the registry, where these nodes should be. Blocks."""
    try:
        known = {member.id for member in registry.members()}
    except RegistryUnavailable as error:
        return f"the registry is away: {error}; {STILL}"
    unknown = ", ".join(id for id in ready if id not in known)
    return f"the registry lacks {unknown} (is its disk full?); {STILL}" if unknown else ""


async def ask_nodes(controls: Mapping[str, str]) -> dict[str, NodeAnswer]:
    """Return what nodes say at the addresses of their control APIs, of those that answer in
    time."""
    answers = await asyncio.gather(*map(_ask, controls.values()))
    return {id: answer for id, answer in zip(controls, answers, strict=True) if answer is not None}


async def _ask(control: str) -> NodeAnswer | None:
    try:
        body = await page_of(Address.parse(control), "/status", seconds=ASK_SECONDS)
        return msgspec.json.decode(body, type=NodeAnswer)
    except (NoPage, msgspec.DecodeError):
        return None
