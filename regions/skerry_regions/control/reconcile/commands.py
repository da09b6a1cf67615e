"""The command lines of nodes and edges that a control plane starts, after `skerry`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from skerry_regions.control.planning.launcher import EdgeSettings, NodeSettings

NODE_DRAIN_SECONDS = 30.0


def node_command(
    id: str,
    settings: NodeSettings,
    *,
    address: Callable[[str], str],
    threads: int,
    prompts: Path | None,
) -> list[str]:
    """Return a node's command line. `address` gives that of a kind: node, kv, control. `prompts` is
    a file of system prompts."""
    command = [
        "node", "--id", id, "--role", settings.role, "--model", settings.model,
        "--region", settings.region, "--residency", settings.residency,
        "--runner", settings.runner, "--threads", str(threads),
        "--address", address("node"), "--transfer", address("kv"), "--control", address("control"),
        "--drain-seconds", str(NODE_DRAIN_SECONDS),
    ]  # fmt: skip
    if settings.kv_blocks is not None:
        command += ["--kv-blocks", str(settings.kv_blocks)]
    if settings.file_tier is not None:
        command += ["--file-tier", settings.file_tier]
    if settings.weights is not None:
        command += ["--weights", settings.weights]
    if prompts is not None:
        command += ["--warm-up", str(prompts)]
    return command


def edge_command(
    id: str, settings: EdgeSettings, *, gateway: str, listener: int, topology: Path
) -> list[str]:
    """Return an edge's command line. `gateway` is where it takes other regions' streams, `listener`
    a descriptor to inherit."""
    command = [
        "edge", "--id", id, "--region", settings.region, "--residency", settings.residency,
        "--topology", str(topology), "--gateway", gateway, "--listener-fd", str(listener),
        "--placement", settings.placement, "--hold",
    ]  # fmt: skip
    for model in settings.models:
        command += ["--model", model]
    if settings.tls is not None:
        command += ["--tls-cert", settings.tls[0], "--tls-key", settings.tls[1]]
    if settings.hosts:
        command += ["--known-host", ",".join(settings.hosts)]
    return command
