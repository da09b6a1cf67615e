"""What a control plane is to be, as its command says, and what it has of its process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from starlette.types import ASGIApp

from skerry_cli.composition.listening import Where
from skerry_cli.composition.serve_machines import JoinOptions
from skerry_cli.composition.starter import Starter
from skerry_cli.home.state import Home
from skerry_edge.gate.tokens import TokenStore
from skerry_regions.control.reconcile.first_start import FirstStart
from skerry_regions.control.reconcile.reconciler import Reconciler
from skerry_regions.models.sources import Progress
from skerry_regions.prometheus import LabelValues
from skerry_regions.registry import Registry
from skerry_regions.spec_types import ConsoleMode


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOptions:
    """What a control plane is to be."""

    where: Where
    topology: Path | None  # to want
    owns: bool  # end what it started, when it ends
    known_hosts: frozenset[str] = frozenset()  # names that it is reached by, beside its address
    console: ConsoleMode = "loopback"  # whom its pages are shown to
    join: JoinOptions | None = None  # where machines join
    ray: Mapping[str, str] = field(default_factory=dict[str, str])  # heads of clusters, by region
    state: str | None = None  # where it is kept; None: where the home or the environment says
    lifeline: int | None  # descriptor that a supervisor gave us
    progress: Progress = lambda what, share: None  # of what it starts


@dataclass(frozen=True, slots=True)
class ControlPart:
    """What a control plane has of its process, from its start to its end."""

    options: ControlOptions
    home: Home
    tokens: TokenStore
    account_id: str
    starter: Starter
    stop: asyncio.Event


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedControl:
    """A control plane within `skerry up --topology`."""

    reconciler: Reconciler
    first_start: FirstStart
    registry: Registry
    tokens: TokenStore
    url: str
    stop: asyncio.Event


Host = Callable[[EmbeddedControl], Coroutine[Any, Any, None]]
"""Goes on beside it until it is cancelled, or raises why it has to end."""


class ServingFront(Protocol):
    """The listener of the control plane."""

    def url(self, host: str = "") -> str: ...

    def certificate_ends(self, name: str) -> dict[LabelValues, float]: ...

    async def serve(
        self, app: ASGIApp, *, stop: asyncio.Event, ready: Callable[[], None]
    ) -> None: ...
