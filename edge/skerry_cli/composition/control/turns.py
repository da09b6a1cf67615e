"""A control plane that takes turns with others: it follows their log, leads, and follows again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from skerry_cli.composition.configured import following_issuers
from skerry_cli.composition.control.answering import control_for
from skerry_cli.composition.control.following import NothingSeen
from skerry_cli.composition.control.options import ControlPart
from skerry_cli.composition.control.shared import SharedControl, SharedSecrets, shared_control
from skerry_cli.composition.control_parts import model_book
from skerry_cli.composition.listening import Front
from skerry_cli.home.edge_tokens import EdgeTokens
from skerry_cli.home.keys import control_key
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.reload import following
from skerry_regions.control.api.app import create_app
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.manifest import Manifest
from skerry_regions.control.errors import Busy
from skerry_regions.process.launch_folder import LaunchFolder
from skerry_regions.prometheus import LabelValues

Lead = Callable[..., Coroutine[Any, Any, None]]

logger = logging.getLogger(__name__)


class SharedFront:
    """A front that answers as a follower, or as the leader while there is one here.

    It looks at each request: whoever was frozen has been replaced by the time it wakes up.
    """

    def __init__(self, front: Front, follower: ASGIApp, is_leading: Callable[[], bool]) -> None:
        self._front = front
        self._follower = follower
        self._is_leading = is_leading
        self._leader: ASGIApp | None = None

    def url(self, host: str = "") -> str:
        return self._front.url(host)

    def certificate_ends(self, name: str) -> dict[LabelValues, float]:
        return self._front.certificate_ends(name)

    async def serve(self, app: ASGIApp, *, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Answer as the leader until `stop`."""
        self._leader = app
        try:
            await stop.wait()
        finally:
            self._leader = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leader = self._leader if self._is_leading() else None
        await (leader or self._follower)(scope, receive, send)


async def in_turn(part: ControlPart, front: Front, manifest: Manifest | None, lead: Lead) -> bool:
    """Run one of several control planes until it is to stop; False, at once, where the state is
    that of this home alone.

    `lead` does what a leader does, and returns when the event `over` is set. Raises what it
    raises, but for Busy, and `CannotStart`.
    """
    secrets = SharedSecrets(part.home)
    async with shared_control(part.home, front.url(), secrets.check) as shared:
        if shared is None:
            return False
        await _take_turns(part, front, manifest, lead, shared, secrets)
        return True


async def _take_turns(
    part: ControlPart,
    front: Front,
    manifest: Manifest | None,
    lead: Lead,
    shared: SharedControl,
    secrets: SharedSecrets,
) -> None:
    store, turns, stop = shared.store, shared.succession, part.stop
    async with contextlib.AsyncExitStack() as stack:
        logins = Logins(part.account_id)
        stack.push_async_callback(logins.close)
        await stack.enter_async_context(following([following_issuers(part.home, logins)]))
        models = model_book(part.home, lambda: None)
        stack.push_async_callback(models.close)
        tokens = EdgeTokens(part.tokens, part.account_id)
        changes = Changes(store, tokens, control_key(part.home))
        control = control_for(
            part, store, changes, NothingSeen(), models, logins, front,
            turn=turns, leader=lambda: turns.leader.url if turns.leader else "",
        )  # fmt: skip
        shown = SharedFront(front, create_app(control), lambda: turns.is_leading)

        def ready() -> None:
            url = front.url()
            part.starter.ready(f"The control plane is ready at {url}.", url=url)

        serving = asyncio.create_task(front.serve(shown, stop=stop, ready=ready), name="front")
        serving.add_done_callback(lambda _: stop.set())
        try:
            while await turns.follow(stop):
                if turns.has_followed and manifest is not None:
                    logger.warning(
                        "--topology is left: another control plane leads; `skerry apply`"
                    )
                    manifest = None
                with contextlib.suppress(Busy):
                    await _lead_once(part, shown, manifest, lead, shared, secrets)
                manifest = None
        finally:
            stop.set()
            await serving


async def _lead_once(
    part: ControlPart,
    shown: SharedFront,
    manifest: Manifest | None,
    lead: Lead,
    shared: SharedControl,
    secrets: SharedSecrets,
) -> None:
    store, turn = shared.store, shared.succession
    async with turn.leading(LaunchFolder.of_control(part.home.root).term) as over:
        term = store.term
        await asyncio.to_thread(secrets.keep, store)
        stopping = asyncio.create_task(part.stop.wait())
        stopping.add_done_callback(lambda _: over.set())
        try:
            await lead(part, store, shown, manifest, None, over=over, term=term, turn=turn)
        finally:
            stopping.cancel()
