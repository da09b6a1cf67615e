"""How far clients are, learnt from their own connections: by network, /24 or /48."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from starlette.types import Scope

from skerry_regions.geo.measured_rtt import MeasuredRtt
from skerry_regions.geo.networks import client_address
from skerry_regions.geo.region_report import MAX_CLIENTS

NETWORK_BITS = {4: 24, 6: 48}
HERE = ""  # the region of this edge


class ClientRtts:
    """Of the networks that were heard of last."""

    def __init__(self) -> None:
        self._rtts = MeasuredRtt(MAX_CLIENTS)

    def seen(self, scope: Scope) -> None:
        """Count the connection of its first HTTP request, where its round trip can be measured."""
        client: tuple[str, int] | None = scope.get("client")
        measure: Callable[[], float | None] | None = scope.get("round_trip")
        if client is None or measure is None or (seconds := measure()) is None:
            return
        try:
            address = client_address(client[0])
        except ValueError:
            return
        network = ipaddress.ip_network((address, NETWORK_BITS[address.version]), strict=False)
        self._rtts.add(str(network), HERE, seconds)

    def report(self) -> dict[str, float]:
        """Return seconds, by network."""
        return self._rtts.to(HERE)
