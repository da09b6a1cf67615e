"""What the API of a control plane works on, and its console."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from starlette.types import ASGIApp

from skerry.errors import Unavailable
from skerry_cli.composition.control.options import ControlPart, ServingFront
from skerry_cli.home.edge_tokens import caller_of
from skerry_cli.home.keys import control_key
from skerry_cli.home.shared.limits_file import LimitsFile
from skerry_cli.home.shared.settings import share_edits
from skerry_cli.home.state import Home, known_config
from skerry_edge.console.control_console import ControlConsole
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.tokens import TokenStore
from skerry_regions.control.api.access import ControlCaller, Denials
from skerry_regions.control.api.app import create_app
from skerry_regions.control.api.requests import Authenticate, Control
from skerry_regions.control.desired.changes import Changes
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.views import Accounts, AnswerDns, DnsQuestion
from skerry_regions.control.dns.checks import MISSING
from skerry_regions.control.errors import Busy, Conflict
from skerry_regions.control.machines.joining import Joining
from skerry_regions.control.planning.zone_contents import ZoneBook
from skerry_regions.control.reconcile.control_metrics import ControlMetrics, Seer, Turn
from skerry_regions.control.reconcile.model_manager import ModelManager
from skerry_regions.control.reconcile.models import ModelBook
from skerry_regions.control.reconcile.scraping import LostMembers, Monitoring
from skerry_regions.known_hosts import host_of
from skerry_regions.models.catalog import Catalog, ModelSpec
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.prometheus import LabelValues


def control_for(
    part: ControlPart,
    store: Store,
    changes: Changes,
    seer: Seer,
    models: ModelBook,
    logins: Logins,
    front: ServingFront,
    *,
    changed: Callable[[], None] = lambda: None,
    turn: Turn | None = None,
    joining: Joining | None = None,
    leader: Callable[[], str] | None = None,
) -> Control:
    """Return what the API of a control plane works on, while it leads and while it follows."""
    home, zones = part.home, ZoneBook(store)

    def ready_regions() -> frozenset[str]:
        edges = (node for node in seer.nodes() if node.kind == "edge")
        return frozenset(edge.region for edge in edges if edge.state == "ready")

    def ends() -> dict[LabelValues, float]:
        here = {member.id for member in seer.members}
        machines = {} if joining is None else joining.machines.certificate_ends(here)
        return front.certificate_ends("control") | machines

    return Control(
        store=store,
        changes=changes,
        observer=seer,
        zones=zones,
        answer_dns=dns_answers(store, zones, ready_regions),
        models=managed(models, os.environ),
        accounts=accounts_of(home),
        authenticate=authentication(part.tokens, logins, part.account_id),
        denials=Denials(store, time.monotonic),
        account_id=part.account_id,
        hosts=part.options.known_hosts | {host_of(part.options.where.host)},
        changed=changed,
        monitoring=Monitoring(
            metrics=ControlMetrics(seer, lambda: store.desired, home.root, ends, turn),
            members=LostMembers(lambda: seer.members, lambda: store.desired, time.monotonic),
            url=front.url,
            edge_url=lambda: edge_url_of(home) if part.starter.is_supervisor else "",
        ),
        joining=joining,
        leader=leader,
    )


def with_console(control: Control, part: ControlPart, logins: Logins) -> ASGIApp:
    """Return the control plane's API with its console beside it."""
    return ControlConsole(
        create_app(control),
        tokens=part.tokens,
        logins=logins,
        key=control_key(part.home),
        caller_of=lambda principal: caller_of(principal, part.account_id),
        mode=part.options.console,
        hosts=control.hosts,
        edge_url=lambda: edge_url_of(part.home),
    )


def managed(models: ModelBook, environ: Mapping[str, str]) -> ModelManager:
    """Return the models as operators manage them: files may be added from the folders that
    SKERRY_MODEL_FOLDERS names, with `:` between."""

    def takes(spec: ModelSpec, files: ModelFiles) -> dict[str, Any]:
        from skerry_cli.composition.loading import footprint

        return footprint(spec, files)

    named = environ.get("SKERRY_MODEL_FOLDERS", "").split(os.pathsep)
    folders = tuple(Path(each).expanduser() for each in named if each)
    return ModelManager(models, takes=takes, folders=folders)


def authentication(tokens: TokenStore, logins: Logins, account_id: str) -> Authenticate:
    """Return what knows callers of the platform's control plane by their API tokens, or by logins
    of OpenID providers, and raises Busy while one of these does not answer."""

    async def authenticate(token: str) -> ControlCaller | None:
        principal = tokens.authenticate(token)
        if principal is None:
            try:
                principal = await logins.authenticate(token)
            except Unavailable as error:
                raise Busy(error.message) from None
        return None if principal is None else caller_of(principal, account_id)

    return authenticate


def accounts_of(home: Home) -> Accounts:
    """Return what accounts of a home may spend, of which edits are shared as an editor's are."""
    share = partial(share_edits, home, os.environ)
    return LimitsFile(home.limits, lambda: Catalog.load(home.root), share)


def edge_url_of(home: Home) -> str:
    """Return where the one edge of `skerry up` is, which is in no registry."""
    return known_config(home).url


def dns_answers(
    store: Store, zones: ZoneBook, ready_regions: Callable[[], frozenset[str]]
) -> AnswerDns:
    """Return what answers questions about zones, or refuses them where DNS is not installed."""
    try:
        from skerry_dns.zone.zone_answers import ZoneAnswers
    except ModuleNotFoundError:
        return _refuse_dns
    return ZoneAnswers(store, zones, ready_regions)


def _refuse_dns(question: DnsQuestion) -> NoReturn:
    raise Conflict(MISSING)
