"""The router's kernels, compiled once for all tests."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from skerry_cli.composition.routing.kernels import load_routing_kernels

ROOT = Path(__file__).resolve().parents[3]
CACHE = Path(os.environ.get("SKERRY_TEST_HOME", ROOT / ".cache" / "skerry")) / "cache"


@functools.cache
def load_router_kernels() -> None:
    """Compile or load them."""
    load_routing_kernels(CACHE, lambda _what, _share: None)
