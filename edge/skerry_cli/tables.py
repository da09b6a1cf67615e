"""Tables that commands print, in 80 columns; and those of the control plane's resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

WIDTH = 80
SHORTEST = 8  # that a column is cut to


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], width: int = WIDTH) -> str:
    """Return rows below their headers, in columns, no line longer than `width`.

    A header that begins with `>` is of numbers, one with `*` of what is cut where room is short.
    """
    names = [header.lstrip(">*") for header in headers]
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    room = {  # what each may lose, by its place
        i: widths[i] - max(len(name), SHORTEST)
        for i, (header, name) in enumerate(zip(headers, names, strict=True))
        if header.startswith("*")
    }
    for _ in range(excess):
        if cuttable := [i for i, left in room.items() if left > 0]:
            widest = max(cuttable, key=lambda i: widths[i])
            widths[widest] -= 1
            room[widest] -= 1
    lines = []
    for row in (names, *rows):
        cells = [
            _cut(cell, size).rjust(size) if header.startswith(">") else _cut(cell, size).ljust(size)
            for header, cell, size in zip(headers, row, widths, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


def short_model(model: str) -> str:
    """Return a model's name without its publisher, for tables."""
    return model.rpartition("/")[2]


Cells = Callable[[dict[str, Any]], list[str]]
COLUMNS: dict[str, tuple[tuple[str, ...], Cells]] = {
    "regions": (
        ("*REGION", "PHASE", ">RUNNING", "RESIDENCY"),
        lambda each: [
            each["id"], each["status"]["phase"],
            f"{each['status']['ready_nodes']}/{each['status']['desired_nodes']}",
            each["residency"],
        ],
    ),
    "pools": (
        ("*POOL", "PHASE", ">READY", "ROLE", "RUNNER", "*MODEL"),
        lambda each: [
            each["id"], each["status"]["phase"],
            f"{each['status']['ready_replicas']}/{each['status']['desired_replicas']}",
            each["role"], each["runner"], short_model(each["model"] or "-"),
        ],
    ),
    "edge_nodes": (
        ("*EDGE", "PHASE", "*REGION", "*URL"),
        lambda each: [
            each["id"], each["status"]["phase"], each["region"], each["status"]["url"] or "-",
        ],
    ),
    "deployments": (
        ("*DEPLOYMENT", "PHASE", "*MODEL", "*REGIONS"),
        lambda each: [
            each["id"], each["status"]["phase"], short_model(each["model"]),
            ", ".join(each["status"]["regions"]) or "-",
        ],
    ),
    "api_tokens": (
        ("*TOKEN", "*NAME", "ROLE", "EXPIRES"),
        lambda each: [
            each["id"], each["name"], each["role"] or "-", each["expires_at"] or "never",
        ],
    ),
    "dns_zones": (
        ("*ZONE", "*NAMES"), lambda each: [each["id"], ", ".join(each["names"]) or "-"]
    ),
    "dns_records": (
        ("*RECORD", ">TTL", "*VALUES"),
        lambda each: [each["id"], str(each["ttl"]), ", ".join(each["values"])],
    ),
    "routing": (
        ("*ROUTING", "DISTANCES", "STEERING", "CANDIDATES"),
        lambda each: [
            each["id"], "emulated" if each["emulate"] else "real",
            each["steer"]["policy"] if each["steer"] else "-", each["router"]["candidates"],
        ],
    ),
}  # fmt: skip
"""Of each collection, the headers of its table, and a resource's cells."""


def resource_table(collection: str, resources: list[dict[str, Any]]) -> str:
    """Return resources of one collection as a table of 80 columns."""
    headers, cells = COLUMNS[collection]
    return table(headers, [cells(each) for each in resources])
