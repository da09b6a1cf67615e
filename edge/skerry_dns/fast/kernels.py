"""What of the fast path is compiled: for a cache of kernels, which whoever starts a server has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import typeof

from skerry_dns import wire
from skerry_dns.fast import asked, compiled, cookies, limiting, responding, serving, table, writing
from skerry_dns.server import cookies as reference_cookies
from skerry_dns.server import responder, response_limits, response_rate
from skerry_regions.geo import networks, shares

SOURCES = (asked, compiled, cookies, limiting, responding, serving, table, writing)
"""Modules whose code ends up in the kernels."""
CONSTANTS = (
    (wire.MAX_OPTIONS, wire.MAX_QUERY, wire.MAX_RECORDS),
    (reference_cookies.FUTURE, reference_cookies.LIFETIME, reference_cookies.RENEWAL),
    (networks.MAX_SCOPE[4], networks.MAX_SCOPE[6]),
    (shares.FAMILY_BIT, shares.MULTIPLIER),
    (response_rate.SLIP, response_rate.SLOTS, response_rate.WINDOW),
    (responder.IP_UDP_HEADER, responder.NO_COOKIE_FACTOR),
    (responder.PLAIN_PAYLOAD, responder.UDP_PAYLOAD),
)
"""Values from elsewhere that do."""


def kernels(variant: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return the functions, by name, and the types of what they are called with."""
    batch, scratch, tables = serving.make_batch(), responding.make_scratch(), table.empty_table()
    keys = responding.Keys(
        np.zeros(2, np.uint64),
        limiting.make_limits(response_limits.ResponseLimits()),
        np.zeros(responding.SOCKADDR, np.uint8),
    )
    words = np.zeros(2, np.int64)
    called: dict[Any, tuple[object, ...]] = {
        responding.respond: (batch.slots[0], 0, tables, keys, scratch, 0.0, batch.outs[0]),
        serving.serve: (serving.Sockets(0, 0), batch, tables, keys, scratch, words, 0),
        table.hashed: (table.SEED, batch.slots[0], 0),
        table.slot_of: (table.SEED, 0),
    }
    return {
        function.__name__: (function, tuple(typeof(each) for each in arguments))
        for function, arguments in called.items()
    }
