"""Which registry a process uses: that of its home, or the one that SKERRY_REGISTRY names."""

from __future__ import annotations

from collections.abc import Mapping

from skerry_cli.home.state import Home
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.registry import Registry, RegistryUnavailable

VARIABLE = "SKERRY_REGISTRY"


def open_registry(home: Home, environ: Mapping[str, str]) -> Registry:
    """Raises RegistryUnavailable."""
    url = environ.get(VARIABLE, "")
    if not url:
        return SqliteRegistry(home.registry)
    if not url.startswith(("nats://", "tls://")):
        raise RegistryUnavailable(f"{VARIABLE} is neither nats://host:port nor tls://host:port")
    try:
        from skerry_regions.drivers.nats_registry import NatsRegistry
    except ImportError:
        raise RegistryUnavailable(
            f"{VARIABLE} names a NATS server: `pip install '.[nats]'` in Skerry's repository first"
        ) from None
    return NatsRegistry(url)
