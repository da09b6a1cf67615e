"""What a control plane is given of the home: its account, what it is to want, its models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from pathlib import Path

from msgspec.structs import replace

from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.parts import credentials
from skerry_cli.home.shared.settings import share_edits, shared_settings, token_store
from skerry_cli.home.shared_state import keep_state
from skerry_cli.home.state import Home, read_config, write_config
from skerry_edge.gate.tokens import TokenStore
from skerry_regions.control.desired import revisions
from skerry_regions.control.desired.manifest import Manifest, ManifestError, load_manifest
from skerry_regions.control.desired.store import Store
from skerry_regions.control.reconcile.models import ModelBook
from skerry_regions.models.pulling import Checks
from skerry_regions.process.launch_folder import LaunchFolder


def model_book(home: Home, changed: Callable[[], None]) -> ModelBook:
    """Return the models of a home, of which edits are shared as those of commands are. Raises
    CatalogError."""

    def checks() -> Checks:
        from skerry_cli.composition.opening import CHECKS  # with all of the engine's formats

        return CHECKS

    return ModelBook(home.root, changed, checks, lambda: share_edits(home, os.environ))


@contextlib.contextmanager
def platform_tokens(home: Home, manifest: Manifest | None) -> Generator[TokenStore]:
    """Yield the tokens of the home, or of all homes where a file says so. Raises `CannotStart`."""
    if manifest is not None:
        keep_state(home, manifest.state)
    with shared_settings(home, os.environ, "control", serves=True) as settings:
        yield token_store(home, settings)


def account_of(home: Home, tokens: TokenStore, url: str, *, is_ours: bool) -> str:
    """Return the platform's account. `is_ours`: no other says where the control plane is."""
    config = read_config(home)
    if is_ours or config is None:
        config = credentials(home, tokens, config.url if config is not None else "")
        write_config(home, replace(config, control_url=url))
    return config.account_id


def read_wanted(path: Path) -> Manifest:
    """Return what a file wants. Raises `CannotStart`, which says where the file is wrong."""
    with raised_as(CannotStart, ManifestError):
        return load_manifest(path).value


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
