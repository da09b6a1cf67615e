"""The router's kernels, compiled once for all tests."""

from __future__ import annotations

import functools
from pathlib import Path
from tempfile import gettempdir

from skerry_cli.composition.routing.kernels import load_routing_kernels

CACHE = Path(gettempdir()) / "skerry-test-kernels"


@functools.cache
def load_router_kernels() -> None:
    """Compile or load them."""
    load_routing_kernels(CACHE, lambda _what, _share: None)
