"""The command lines of nodes and edges that are started with the platform."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from skerry_regions.control.planning.launcher import EdgeSettings, NodeSettings

_SAID = (
    "kv_blocks", "streams", "step_tokens", "draft_tokens", "file_tier", "pin_share", "weights",
    "kv", "tensor", "pipeline",
)  # fmt: skip
SKERRY = (sys.executable, "-m", "skerry")
NODE_DRAIN_SECONDS = 30.0  # of one node alone, while edges live


def node_command(
    id: str,
    settings: NodeSettings,
    *,
    address: Callable[[str], str],
    threads: int,
    prompts: Path | None,
    advertise: str = "",
    incarnation: int = 0,
) -> list[str]:
    """Return a node's command line. `address` gives that of a kind: node, kv, control. `prompts` is
    a file of system prompts; `advertise` and `incarnation` are of one on a host."""
    command = [
        *SKERRY, "node", "--id", id, "--role", settings.role, "--model", settings.model,
        "--region", settings.region, "--residency", settings.residency,
        "--runner", settings.runner, "--threads", str(threads),
        "--address", address("node"), "--transfer", address("kv"), "--control", address("control"),
        "--drain-seconds", str(NODE_DRAIN_SECONDS),
    ]  # fmt: skip
    for name in _SAID:
        if (value := getattr(settings, name)) is not None:
            command += [f"--{name.replace('_', '-')}", str(value)]
    if settings.stages:
        command += ["--stages", ",".join(settings.stages)]
    if prompts is not None:
        command += ["--warm-up", str(prompts)]
    if advertise:
        command += ["--advertise", advertise]
    if incarnation:
        command += ["--incarnation", str(incarnation)]
    return command


def dns_command(zone: str, metrics: str) -> list[str]:
    """Return the command line of a zone's DNS server."""
    return [*SKERRY, "dns", "--zone", zone, "--metrics", metrics]


def edge_command(id: str, settings: EdgeSettings, *, gateway: str, topology: Path) -> list[str]:
    """Return an edge's command line, without its listener. `gateway` is where it takes other
    regions' streams. Nodes may be asleep: requests wait for them."""
    command = [
        *SKERRY, "edge", "--id", id, "--region", settings.region, "--residency", settings.residency,
        "--topology", str(topology), "--gateway", gateway, "--placement", settings.placement,
        "--hold",
    ]  # fmt: skip
    for model in settings.models:
        command += ["--model", model]
    if settings.left_out:
        command += ["--left-out", msgspec.json.encode(settings.left_out).decode()]
    if settings.public_url is not None:
        command += ["--public-url", settings.public_url]
    if settings.console != "loopback":
        command += ["--console", settings.console]
    if settings.tls is not None:
        command += ["--tls-cert", settings.tls[0], "--tls-key", settings.tls[1]]
    if settings.hosts:
        command += ["--known-host", ",".join(settings.hosts)]
    return command
