"""What a control plane is given of the home: its account, what it is to want, models, zones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from msgspec.structs import replace
from starlette.types import ASGIApp

from skerry.errors import Unavailable
from skerry_cli.home.edge_tokens import caller_of
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.keys import control_key
from skerry_cli.home.parts import credentials
from skerry_cli.home.shared.limits_file import LimitsFile
from skerry_cli.home.shared.settings import share_edits, shared_settings, token_store
from skerry_cli.home.shared_state import keep_state
from skerry_cli.home.state import Home, known_config, read_config, write_config
from skerry_edge.console.control_console import ControlConsole
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.tokens import TokenStore
from skerry_regions.control.api.access import ControlCaller
from skerry_regions.control.api.requests import Authenticate
from skerry_regions.control.desired import revisions
from skerry_regions.control.desired.manifest import Manifest, ManifestError, load_manifest
from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.views import Accounts, AnswerDns, DnsQuestion
from skerry_regions.control.dns.checks import MISSING
from skerry_regions.control.errors import Busy, Conflict
from skerry_regions.control.planning.zone_contents import ZoneBook
from skerry_regions.control.reconcile.model_manager import ModelManager
from skerry_regions.control.reconcile.models import ModelBook
from skerry_regions.control.reconcile.reconciler import Reconciler
from skerry_regions.models.catalog import Catalog, ModelSpec
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.pulling import Checks
from skerry_regions.process.launch_folder import LaunchFolder
from skerry_regions.spec_types import ConsoleMode


def model_book(home: Home, changed: Callable[[], None]) -> ModelBook:
    """Return the models of a home, of which edits are shared as those of commands are. Raises
    CatalogError."""

    def checks() -> Checks:
        from skerry_cli.composition.opening import CHECKS  # with all of the engine's formats

        return CHECKS

    return ModelBook(home.root, changed, checks, lambda: share_edits(home, os.environ))


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


def with_console(
    app: ASGIApp,
    home: Home,
    tokens: TokenStore,
    logins: Logins,
    account_id: str,
    *,
    mode: ConsoleMode,
    hosts: frozenset[str],
) -> ASGIApp:
    """Return the control plane's API with its console beside it."""
    return ControlConsole(
        app,
        tokens=tokens,
        logins=logins,
        key=control_key(home),
        caller_of=lambda principal: caller_of(principal, account_id),
        mode=mode,
        hosts=hosts,
        edge_url=lambda: edge_url_of(home),
    )


@contextlib.contextmanager
def platform_tokens(home: Home, manifest: Manifest | None) -> Generator[TokenStore]:
    """Yield the tokens of the home, or of all homes where a file says so. Raises `CannotStart`."""
    if manifest is not None:
        keep_state(home, manifest.state)
    with shared_settings(home, os.environ, "control", serves=True) as settings:
        yield token_store(home, settings)


def accounts_of(home: Home) -> Accounts:
    """Return what accounts of a home may spend, of which edits are shared as an editor's are."""
    share = partial(share_edits, home, os.environ)
    return LimitsFile(home.limits, lambda: Catalog.load(home.root), share)


def edge_url_of(home: Home) -> str:
    """Return where the one edge of `skerry up` is, which is in no registry."""
    return known_config(home).url


def ready_regions(reconciler: Reconciler) -> frozenset[str]:
    edges = (node for node in reconciler.nodes() if node.kind == "edge")
    return frozenset(edge.region for edge in edges if edge.state == "ready")


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


def account_of(home: Home, tokens: TokenStore, url: str, *, is_ours: bool) -> str:
    """Return the platform's account. `is_ours`: no other says where the control plane is."""
    config = read_config(home)
    if is_ours or config is None:
        config = credentials(home, tokens, config.url if config is not None else "")
        write_config(home, replace(config, control_url=url))
    return config.account_id


def read_wanted(path: Path) -> Manifest:
    """Return what a file wants. Raises `CannotStart`, which says where the file is wrong."""
    try:
        return load_manifest(path).value
    except ManifestError as error:
        raise CannotStart(str(error)) from None


def write_down(manifest: Manifest | None, home: Home, store: Store, *, is_up: bool) -> None:
    """Set the desired state to what a file says, if there is one. What `skerry up --topology`
    wanted goes with the next start that is not of it. Raises ControlError, and `CannotStart` while
    it runs."""
    source = revisions.UP if is_up else revisions.FILE
    if manifest is not None:
        revisions.apply(manifest, store, actor=revisions.FILE, source=source, prunes=True)
    elif _runs_topology(home, store):
        raise CannotStart(
            "processes of a topology go on without their supervisor: `skerry up --topology FILE` "
            "or `skerry control --topology FILE` takes over, `skerry down` ends them"
        )
    if not is_up:
        revisions.apply(Manifest(), store, actor=revisions.FILE, source=revisions.UP, prunes=True)


def _runs_topology(home: Home, store: Store) -> bool:
    """Return whether something runs that `skerry up --topology` wants."""
    records = store.desired.records
    wanted = {
        id
        for (kind, id), source in store.decisions(revisions.SOURCE).items()
        if source == revisions.UP and not records[kind, id].deleting
    }
    running = LaunchFolder.of_control(home.root).running()
    return any(record.owner in wanted for record, _ in running)
