"""The seal of spending on NATS servers: set once a home has taken it back.

Edges read it when they start and follow it, so that no cap is spent at two places.
"""

from __future__ import annotations

from skerry_regions.drivers.jetstream.stream import KeyedStream, Write

SEALED = "sealed.home"  # beside the keys of payers, which are of one part


async def seal(stream: KeyedStream, home: str) -> None:
    """Have edges spend nothing of what is counted here: a home goes on with it. Raises
    `Unavailable`."""
    await stream.write(Write(SEALED, home.encode()))


async def sealed_by(stream: KeyedStream) -> str:
    """Return which home goes on with what was counted here; empty: none. Raises `Unavailable`."""
    stored = await stream.last(SEALED)
    return "" if stored is None else stored.data.decode()


async def unseal(stream: KeyedStream) -> None:
    """Have edges spend here again. Raises `Unavailable`."""
    await stream.delete(SEALED)
