"""Every bound of the edge in one place. Sizes in bytes, times in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one edge accepts from the network. The defaults suit a laptop and a small server."""

    # One connection. A client that sends nothing, or sends it slowly, holds a socket and no more.
    max_connections: int = 4096
    reserved_connections: int = 64  # more of them, for probes of health when all are taken
    header_bytes: int = 16 * 1024  # request line and fields together
    header_fields: int = 100
    target_bytes: int = 4 * 1024  # path and query
    header_seconds: float = (
        10.0  # a TLS handshake; then from it, or the first byte, to the last one
    )
    body_bytes: int = 8 * 1024 * 1024
    upload_bytes: int = 64 * 1024 * 1024  # of a body sent to /v1/files
    body_seconds: float = 60.0  # from the header to the last body byte
    body_bytes_per_second: float = 1024.0  # the slowest upload that is still served …
    body_grace_seconds: float = 5.0  # … measured from here on
    idle_seconds: int = 75  # between two requests of one connection; above most client pools' own
    write_seconds: float = 60.0  # a client that reads nothing for so long is gone
    linger_seconds: float = 2.0  # what a refused client still sends is read and dropped so long

    # One request.
    request_seconds: float = 600.0  # from the header to the last byte of the answer
    keep_alive_seconds: float = 5.0  # a silent stream sends a comment this often
    default_max_tokens: int = 256  # upstream's, where neither caller nor catalog says
    prompt_chars_per_token: int = 32  # longer texts cannot fit the context: refused untokenised

    # One WebSocket, which holds a place of `max_connections` for as long as it is open.
    ping_seconds: float = 20.0  # after which a silent client is pinged; it has as long to answer
    socket_idle_seconds: float = 600.0  # without a request, then it is closed
    socket_seconds: float = 3600.0  # then it takes no more requests, as upstream's
    socket_lanes: int = 32  # that have names
    socket_running: int = 16  # requests at once, one of each lane; others wait …
    socket_waiting: int = 64  # … so many of all lanes

    # One tenant, at one edge.
    tenant_sockets: int = 64

    # The whole edge.
    max_sockets: int = 1024
    max_requests: int = 1024  # in progress at once; beyond it callers are to come back
    drain_seconds: int = 30  # streams may finish this long after SIGTERM
    retire_seconds: float = 2.0  # a successor serves: idle connections may send once more so long

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"limit {field.name} must be positive and finite, got {value}")
