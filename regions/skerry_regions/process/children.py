"""Processes that end with whoever has started them."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

from skerry_regions.process.log_files import open_log

Health = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """How to start one process. The descriptor of its lifeline is appended to `command`."""

    id: str
    command: Sequence[str]
    environ: Mapping[str, str]
    log: Path
    descriptors: Sequence[int] = ()  # to inherit
    healthy: Health | None = None


async def start_child(spec: ProcessSpec, lifeline: int) -> asyncio.subprocess.Process:
    """Start it as a child of ours: see `Lifeline.watch`. Raises OSError."""
    with os.fdopen(open_log(spec.log), "ab") as log:
        return await asyncio.create_subprocess_exec(
            *spec.command,
            str(lifeline),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=spec.environ,
            pass_fds=[*spec.descriptors, lifeline],
            start_new_session=True,  # Ctrl-C is ours: it must not end all at once
        )


def signal_child(child: asyncio.subprocess.Process, number: Signals) -> None:
    """Send it, unless the child is gone."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)
