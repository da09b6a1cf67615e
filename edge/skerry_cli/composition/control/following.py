"""What a control plane answers while another one leads."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

from starlette.types import ASGIApp

from skerry_cli.composition.control.options import ControlPart, ServingFront
from skerry_cli.composition.control_parts import accounts_of, authentication, dns_answers
from skerry_cli.home.edge_tokens import EdgeTokens
from skerry_cli.home.keys import control_key
from skerry_edge.gate.oidc.logins import Logins
from skerry_regions.control.api.access import Denials
from skerry_regions.control.api.app import create_app
from skerry_regions.control.api.requests import Control
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.desired import Record
from skerry_regions.control.desired.resources import Status
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.views import NodeView, ResourceFailure
from skerry_regions.control.errors import NotLeading
from skerry_regions.control.planning.zone_contents import ZoneBook
from skerry_regions.control.reconcile.control_metrics import ControlMetrics, Turn
from skerry_regions.control.reconcile.failures import Failures
from skerry_regions.control.reconcile.model_manager import ModelManager
from skerry_regions.control.reconcile.scraping import Monitoring
from skerry_regions.known_hosts import host_of
from skerry_regions.registry import Member


class NothingSeen:
    """The `Seer` of whoever looks at nothing."""

    revision = 0
    num_errors = 0
    seconds_behind = 0.0
    members: tuple[Member, ...] = ()

    def __init__(self) -> None:
        self.failures = Failures(Random())

    def status(self, record: Record) -> Status | None:
        return None

    def nodes(self) -> list[NodeView]:
        return []

    def failing(self) -> list[ResourceFailure]:
        return []

    def drain(self, id: str) -> NodeView:
        raise NotLeading("another control plane leads")


def following_app(
    part: ControlPart,
    store: Store,
    front: ServingFront,
    logins: Logins,
    models: ModelManager,
    turn: Turn,
    leader: Callable[[], str],
) -> ASGIApp:
    """Return the API of a control plane that follows the one at `leader()`."""
    seer, zones = NothingSeen(), ZoneBook(store)
    tokens = EdgeTokens(part.tokens, part.account_id)
    control = Control(
        store=store,
        changes=Changes(store, tokens, control_key(part.home)),
        observer=seer,
        zones=zones,
        answer_dns=dns_answers(store, zones, frozenset[str]),
        models=models,
        accounts=accounts_of(part.home),
        authenticate=authentication(part.tokens, logins, part.account_id),
        denials=Denials(store, time.monotonic),
        account_id=part.account_id,
        hosts=part.options.known_hosts | {host_of(part.options.where.host)},
        changed=lambda: None,
        monitoring=Monitoring(
            metrics=ControlMetrics(
                seer,
                lambda: store.desired,
                part.home.root,
                lambda: front.certificate_ends("control"),
                turn,
            ),
            members=lambda: (),
            url=front.url,
            edge_url=lambda: "",
        ),
        leader=leader,
    )
    return create_app(control)
