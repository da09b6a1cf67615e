"""Round trips as the kernel measures them: of a TCP connection, without a packet of our own."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys

MIN_RTT = 148  # offset of `tcpi_min_rtt` in Linux' `struct tcp_info`: microseconds
INFO_BYTES = 192
NOT_MEASURED = 0xFFFFFFFF


def round_trip(transport: asyncio.BaseTransport) -> float | None:
    """Return the shortest round trip so far, in seconds; None where there is none to be had.

    The shortest, as others have the client's delayed acknowledgements in them.
    """
    own = transport.get_extra_info("socket")
    if own is None or sys.platform != "linux" or own.fileno() < 0:
        return None
    borrowed = socket.socket(fileno=own.fileno())
    try:
        info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
    except OSError:
        return None
    finally:
        borrowed.detach()
    if len(info) < MIN_RTT + 4:
        return None
    (microseconds,) = struct.unpack_from("=I", info, MIN_RTT)
    return None if microseconds in (0, NOT_MEASURED) else microseconds * 1e-6
