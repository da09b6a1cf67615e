"""Kinds of resources, as commands call them."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

KINDS = {
    "regions": "region",
    "pools": "pool",
    "edge_nodes": "edge_node",
    "deployments": "deployment",
    "api_tokens": "api_token",
    "dns_zones": "dns_zone",
    "dns_records": "dns_record",
    "routing": "routing",
}
"""By the collection of the control API."""
MARKS = {"create": "+", "restore": "+", "update": "~", "delete": "-"}
"""Of what is done to a resource."""
WORDS = {"edge_node": "edge", "api_token": "token"}
"""What people call a kind, where it is another word."""
OTHER_NAMES = {"edge": "edge_nodes", "edges": "edge_nodes", "token": "api_tokens",
               "tokens": "api_tokens"}  # fmt: skip
KIND_HELP = "region, pool, edge, deployment, token, dns_zone, dns_record or routing"


@dataclass(frozen=True, slots=True)
class Named:
    """One resource by its collection and id."""

    collection: str
    id: str


def collection(text: str) -> str:
    """Return the collection of a kind: `pool`, `pools`."""
    known = text.lower().replace("-", "_")
    for name, kind in KINDS.items():
        if known in (name, kind):
            return name
    if known in OTHER_NAMES:
        return OTHER_NAMES[known]
    raise argparse.ArgumentTypeError(f"{text!r} is not a kind: {KIND_HELP}")


def word(kind: str) -> str:
    """Return what people call a kind; commands take that, too."""
    return WORDS.get(kind, kind)


def named(id: str) -> str:
    """Return an id as a part of a path."""
    return re.sub(r"[^A-Za-z0-9_.:@*-]", lambda match: "".join(f"%{byte:02X}" for byte in
                                                              match[0].encode()), id)  # fmt: skip
