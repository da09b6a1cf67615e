"""Which node a session belongs to: decided by every edge alike, with nothing remembered."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from skerry_regions.view import NodeState


def home_of(affinity: bytes, nodes: Sequence[NodeState], origin: str) -> str | None:
    """The node that a session's prompts are best kept on; None without a session or a node.

    Of the nodes that prefill for everybody, in the caller's region if it has any, the one with the
    highest hash of session and node (Thaler and Ravishankar, 1998): when a node comes or goes, only
    its own sessions move.
    """
    if not affinity:
        return None
    healthy = [node for node in nodes if not node.suspect]
    for candidates in (
        [node for node in healthy if node.offers_prefill and node.region == origin],
        [node for node in healthy if node.region == origin],
        healthy,
    ):
        if candidates:
            return max(candidates, key=lambda node: _weight(affinity, node)).id
    return None


def _weight(affinity: bytes, node: NodeState) -> bytes:
    return blake2b(node.id.encode(), key=affinity, digest_size=8).digest()
