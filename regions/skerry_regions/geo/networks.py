"""Prefixes of addresses → values, with the widest scope that an answer may have.

RFC 7871 lets a resolver give one answer to every client within the answer's scope, so no two
overlapping scopes may have different answers. Here the scope is the largest aligned block around
the client in which every address has the same value.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Generic, TypeVar

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_SCOPE = {4: 24, 6: 56}  # resolvers cache no longer prefixes

T = TypeVar("T")


def client_address(host: str) -> Address:
    """Return the address of a socket's peer; IPv4 clients of a dual-stack socket count as IPv4.
    Raises ValueError for what is none."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def widened(network: Network) -> Network:
    """Return a network no longer than resolvers cache: a /32 speaks for its /24."""
    longest = MAX_SCOPE[network.version]
    return network if network.prefixlen <= longest else network.supernet(new_prefix=longest)


@dataclass(slots=True)
class _Node(Generic[T]):
    """A block of addresses; its halves inherit the value where they have none of their own."""

    value: T | None = None
    zero: _Node[T] | None = None
    one: _Node[T] | None = None


class Networks(Generic[T]):
    """A map of prefixes; of two that contain an address the longer counts.

    Values are compared with `==`: neighbours of equal value are one block.
    """

    def __init__(self, entries: dict[Network, T]) -> None:
        self._roots: dict[int, _Node[T]] = {4: _Node(), 6: _Node()}
        for network, value in entries.items():
            self._insert(network, value)
        for root in self._roots.values():
            _merge(root, None)

    def _insert(self, network: Network, value: T) -> None:
        node = self._roots[network.version]
        bits = int(network.network_address)
        for depth in range(network.prefixlen):
            if bits >> (network.max_prefixlen - 1 - depth) & 1:
                node.one = node.one or _Node()
                node = node.one
            else:
                node.zero = node.zero or _Node()
                node = node.zero
        node.value = value

    def find(self, address: Address) -> tuple[T | None, int]:
        """Return the value of an address, None where no prefix holds it, and bits of the block
        around it."""
        node = self._roots[address.version]
        bits, width = int(address), address.max_prefixlen
        value = node.value
        for depth in range(width):
            if node.zero is None and node.one is None:
                return value, depth
            child = node.one if bits >> (width - 1 - depth) & 1 else node.zero
            if child is None:
                return value, depth + 1
            node = child
            value = node.value if node.value is not None else value
        return value, width


def _merge(node: _Node[T], inherited: T | None) -> None:
    """Drop what changes nothing: halves whose value is the block's, and pairs of equal halves."""
    own = node.value if node.value is not None else inherited
    for child in (node.zero, node.one):
        if child is not None:
            _merge(child, own)
    zero, one = _leaf(node.zero, own), _leaf(node.one, own)
    if zero is not None and one is not None and zero[0] == one[0]:
        node.value, node.zero, node.one = zero[0], None, None
        return
    if zero is not None and zero[0] == own:
        node.zero = None
    if one is not None and one[0] == own:
        node.one = None


def _leaf(node: _Node[T] | None, inherited: T | None) -> tuple[T | None] | None:
    """Return the one value of a whole block (boxed, as it may be None), or None where it has
    several."""
    if node is None:
        return (inherited,)
    if node.zero is None and node.one is None:
        return (node.value if node.value is not None else inherited,)
    return None
