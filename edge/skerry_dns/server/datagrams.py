"""UDP sockets of the DNS server."""

from __future__ import annotations

import socket
import sys
from typing import Any

IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3  # of Linux; Python has no names for them


def bound(host: Any, family: int, *, is_shared: bool) -> socket.socket:
    """Return a socket at a name of this family. Raises OSError.

    Several may be at a name that `is_shared`. What is sent is never fragmented, whatever forged
    messages say of the way (RFC 9715): answers are no longer than every way of IPv6 takes, and for
    IPv4 they are marked so. (Which spares the kernel to draw a number for each.)
    """
    udp = socket.socket(family, socket.SOCK_DGRAM)
    try:
        if is_shared:
            udp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:  # as asyncio's servers do it: IPv4 has sockets of its own
            udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        elif sys.platform == "linux":
            udp.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        udp.bind(host)
    except OSError:
        udp.close()
        raise
    return udp
