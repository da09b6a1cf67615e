"""Where an edge's finished traces go besides its own memory: to a configured collector."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable

from skerry_edge.telemetry.otlp import OTLPNotInstalled, is_configured, open_exporter
from skerry_edge.telemetry.tracing import TraceRecord

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def exporting(edge: str, region: str) -> AsyncGenerator[Callable[[TraceRecord], None]]:
    """What takes finished traces until the block ends; then what is left is sent.

    Missing packages are told and cost spans, not the platform.
    """
    exporter = None
    if is_configured(os.environ):
        try:
            exporter = await asyncio.to_thread(open_exporter, edge, region)
        except OTLPNotInstalled as error:
            logger.warning("no spans are exported: %s", error)
    try:
        yield _forget if exporter is None else exporter.export
    finally:
        if exporter is not None:
            await asyncio.to_thread(exporter.close)


def _forget(record: TraceRecord) -> None:
    """Nobody else wants it."""
