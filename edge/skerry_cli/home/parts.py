"""What every way of starting needs: model files, an account with a token, a place to listen.

Nothing here knows the engine, so that an edge on its own stays small.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skerry.errors import SkerryError
from skerry_cli.home.state import Config, Home, read_config, write_config
from skerry_edge.api import cors
from skerry_edge.gate.auth import TokenStore, new_account_id
from skerry_edge.http.server import listen
from skerry_edge.ledger.batches import Batches
from skerry_edge.ledger.file_store import FileStore
from skerry_edge.ledger.stores import Stores, cache_ttl_from
from skerry_edge.limits import Limits
from skerry_edge.text.encoder import EncoderText
from skerry_edge.text.model import TextModel
from skerry_edge.text.template import TemplateError
from skerry_regions.drivers.sqlite_queue import SqliteQueue
from skerry_regions.models.catalog import Catalog, CatalogError, ModelSpec
from skerry_regions.models.sources import Hub, Progress
from skerry_regions.models.store import (
    ModelCorrupt,
    ModelFiles,
    ModelStore,
    PullError,
    UnsupportedModel,
)
from skerry_regions.topology.spec import Topology, TopologyError, load_topology

LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where a wildcard can be reached from here


class CannotStart(Exception):
    """The platform cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model whose files are here."""

    spec: ModelSpec
    files: ModelFiles


def read_topology(path: Path) -> Topology:
    """A topology file, checked. Raises `CannotStart`, which says where it is wrong."""
    try:
        return load_topology(path)
    except TopologyError as error:
        raise CannotStart(str(error)) from None
    except OSError as error:
        raise CannotStart(f"cannot read {path}: {error.strerror}") from None


def install_models(
    names: Sequence[str], home: Home, progress: Progress
) -> tuple[Catalog, list[Model]]:
    """The models of these ids or aliases, downloaded where they are missing; each once.

    No names: the default models. Raises `CannotStart`.
    """
    try:
        catalog = Catalog.load(home.root)
        store = ModelStore(home.root, hub=Hub.from_environ(os.environ))
        chosen = names or default_models(catalog, store)
        specs = {spec.id: spec for spec in map(catalog.resolve, chosen)}
        models = [Model(spec, store.pull(spec, progress)) for spec in specs.values()]
    except SkerryError as error:
        raise CannotStart(f"{error.message} `skerry models list` shows what there is.") from None
    except (CatalogError, PullError, ModelCorrupt, UnsupportedModel) as error:
        raise CannotStart(str(error)) from None
    return catalog, models


def default_models(catalog: Catalog, store: ModelStore) -> list[str]:
    """Ids of the models that `skerry up` serves when none is named.

    Those that the operator added, and of those that come with Skerry the installed ones. While the
    first of these is not installed, nothing is: then all of them, to be installed now.
    """
    packaged = {spec.id for spec in Catalog.load()}
    first = next(spec for spec in catalog if spec.id in packaged)
    is_new = not store.is_installed(first)
    return [
        spec.id
        for spec in catalog
        if is_new or spec.id == first.id or spec.id not in packaged or store.is_installed(spec)
    ]


def open_batches(home: Home) -> Batches:
    """The home's queue and files; their files are made when they are first needed."""
    return Batches(queue=SqliteQueue(home.queue), files=FileStore(home.files))


def load_texts(models: list[Model]) -> dict[str, TextModel]:
    """Tokenizers and chat templates, by id, of models that make text. Raises `CannotStart`."""
    try:
        return {
            model.spec.id: TextModel(model.files, context_window=model.spec.context_window)
            for model in models
            if not model.spec.is_encoder
        }
    except TemplateError as error:
        raise CannotStart(str(error)) from None


def cors_origins() -> tuple[str, ...]:
    """Web pages that may call, from the environment. Raises `CannotStart`."""
    try:
        return cors.origins_from(os.environ)
    except ValueError as error:
        raise CannotStart(str(error)) from None


def open_stores(home: Home, edge: str) -> Stores:
    """Where an edge keeps what it remembers of requests. Raises `CannotStart`."""
    try:
        return Stores.in_folder(home.stores, edge=edge, cache_ttl=cache_ttl_from(os.environ))
    except ValueError as error:
        raise CannotStart(str(error)) from None


def load_encoder_texts(models: list[Model]) -> dict[str, EncoderText]:
    """Tokenizers, by id, of models that embed or classify text."""
    return {
        model.spec.id: EncoderText(model.files, max_tokens=model.spec.context_window)
        for model in models
        if model.spec.is_encoder
    }


def credentials(home: Home, tokens: TokenStore, url: str, *, control_url: str = "") -> Config:
    """The account and token of this home, made on first use, written where the SDK reads them."""
    config = read_config(home)
    if config is not None and tokens.authenticate(config.api_token) is not None:
        account_id, token = config.account_id, config.api_token
    else:
        account_id = config.account_id if config is not None else new_account_id()
        token, _ = tokens.create(account_id=account_id, name="skerry up", now=int(time.time()))
    config = Config(url=url, account_id=account_id, api_token=token, control_url=control_url)
    write_config(home, config)
    return config


def listen_at(host: str, port: int, limits: Limits) -> socket.socket:
    """Listen for HTTP. Raises `CannotStart`."""
    try:
        return listen(host, port, limits)
    except OSError as error:
        hint = "Choose another with --port, or --port 0 for any free one."
        if error.errno != errno.EADDRINUSE:
            hint = "See --host and --port."
        reason = error.strerror or str(error)
        raise CannotStart(f"cannot listen on {host} port {port}: {reason}. {hint}") from None


def reachable(listener: socket.socket) -> tuple[str, int]:
    """Host and port at which this machine reaches a listener."""
    address: tuple[str, int] = listener.getsockname()[:2]
    host, port = address
    return LOOPBACK.get(host, host), port


def url_of(listener: socket.socket, *, tls: bool = False, host: str = "") -> str:
    """Where callers reach it: at `host`, where one is given."""
    own, port = reachable(listener)
    host = host or own
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
