"""Which node a session belongs to: decided by every edge alike, with nothing remembered."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from skerry_regions.view import NodeState

_MASK = (1 << 64) - 1


def home_of(affinity: bytes, nodes: Sequence[NodeState], origin: str) -> str | None:
    """Return the node that a session's prompts are best kept on; None without a session or a node.

    Of the nodes that prefill for everybody, in the caller's region if it has any, the one with the
    highest hash of session and node (Thaler and Ravishankar, 1998): when a node comes or goes, only
    its own sessions move.
    """
    if not affinity:
        return None
    session = session_hash(affinity)
    for candidates in (
        [node for node in nodes if node.offers_prefill and node.region == origin],
        [node for node in nodes if node.region == origin],
        nodes,
    ):
        if candidates:
            return max(candidates, key=lambda node: _mixed(session ^ node_hash(node.id))).id
    return None


@lru_cache(maxsize=1 << 15)
def node_hash(node: str) -> int:
    """Return 64 bits of a node's id."""
    return int.from_bytes(blake2b(node.encode(), digest_size=8).digest())


def session_hash(affinity: bytes) -> int:
    """Return 64 bits of a session's name, which has 16 bytes at most; never 0."""
    return int.from_bytes(blake2b(affinity, digest_size=8).digest()) or 1


def _mixed(value: int) -> int:
    """Return 64 well-mixed bits of a number (SplitMix64's finaliser, Steele et al. 2014)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
