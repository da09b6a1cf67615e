"""The fast path of `skerry dns`, compiled once and kept with the platform's other kernels.

Imports numba: whoever imports this module has seen that it is there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numba import typeof

from skerry_core.runner import Progress
from skerry_core.runners.kernel_cache import KernelSet, load_kernels
from skerry_dns import wire
from skerry_dns.fast import asked, compiled, cookies, limiting, responding, serving, table, writing
from skerry_dns.server import cookies as reference_cookies
from skerry_dns.server import responder as reference
from skerry_dns.server import response_rate

VARIANT = "any"  # there is one


def _kernels(variant: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Functions and the types of what they are called with."""
    batch, scratch, tables = serving.make_batch(), responding.make_scratch(), table.empty_table()
    keys = responding.Keys(
        np.zeros(2, np.uint64), limiting.make_rate(1.0), np.zeros(responding.SOCKADDR, np.uint8)
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


DNS_KERNELS = KernelSet(
    name="dns",
    reference=f"{__name__}:DNS_KERNELS",
    sources=(asked, compiled, cookies, limiting, responding, serving, table, writing),
    constants=(
        (wire.MAX_OPTIONS, wire.MAX_QUERY, wire.MAX_RECORDS),
        (reference_cookies.FUTURE, reference_cookies.LIFETIME, reference_cookies.RENEWAL),
        (response_rate.SLIP, response_rate.SLOTS, response_rate.WINDOW),
        (reference.IP_UDP_HEADER, reference.NO_COOKIE_FACTOR),
        (reference.PLAIN_PAYLOAD, reference.UDP_PAYLOAD),
    ),
    kernels=_kernels,
)


def load_dns_kernels(cache_dir: Path, progress: Progress) -> None:
    """Have the fast path ready. Raises `CompilationError`."""
    load_kernels(DNS_KERNELS, VARIANT, cache_dir, progress)
