"""What every way of starting needs: model files, an account with a token, a place to listen.

Nothing here knows the engine, so that an edge on its own stays small.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from skerry.errors import SkerryError
from skerry_cli.home.errors import CannotStart, raised_as
from skerry_cli.home.shared.answers import share_answers
from skerry_cli.home.shared_state import open_queue, stream_of
from skerry_cli.home.state import Config, Home, read_config, write_config
from skerry_edge.api import cors
from skerry_edge.gate.token_audit import TokenAudit
from skerry_edge.gate.token_file import TokenStoreError, new_account_id
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.http.server import listen
from skerry_edge.ledger.batches import Batches
from skerry_edge.ledger.file_store import FileStore
from skerry_edge.ledger.files import Files
from skerry_edge.ledger.idempotency import RequestKeys
from skerry_edge.ledger.responses_store import Responses, ResponseStore
from skerry_edge.ledger.stores import Stores, cache_ttl_from, keeps_chains
from skerry_edge.limits import Limits
from skerry_edge.shared.redis_answers import Outcome
from skerry_edge.text.encoder import EncoderText
from skerry_edge.text.model import TextModel
from skerry_edge.text.templates.template import TemplateError
from skerry_regions.address import LOOPBACK
from skerry_regions.drivers.jetstream.tables import FILES, IDEMPOTENCY, RESPONSES
from skerry_regions.known_hosts import hosts_of
from skerry_regions.models.catalog import Catalog, CatalogError, ModelSpec, is_packaged
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import (
    LeftOut,
    ModelProblem,
    UnsupportedTemplate,
    left_out_by,
)
from skerry_regions.models.sources import Hub, Progress
from skerry_regions.models.store import ModelStore
from skerry_regions.topology.loading import TopologyError, load_topology
from skerry_regions.topology.spec import Topology

if TYPE_CHECKING:
    from skerry_regions.drivers.jetstream.connection import JetStream

HOSTS_VARIABLE = "SKERRY_EDGE_HOSTS"


@dataclass(frozen=True, slots=True)
class InstalledModel:
    """A model whose files are here."""

    spec: ModelSpec
    files: ModelFiles


@dataclass(frozen=True, slots=True)
class Installation:
    """What a start can serve, and what it has to leave out."""

    catalog: Catalog
    models: list[InstalledModel]
    left_out: list[LeftOut]

    def without(self, left_out: Sequence[LeftOut]) -> Installation:
        """Leave more out. Raises `CannotStart` when nothing remains."""
        gone = {each.model for each in left_out}
        models = [model for model in self.models if model.spec.id not in gone]
        everything = [*self.left_out, *left_out]
        if everything and not models:
            raise CannotStart("no model can be served.\n" + "\n".join(map(sentence, everything)))
        return Installation(self.catalog, models, everything)


def sentence(left_out: LeftOut) -> str:
    """Return the sentence on a model that is left out."""
    return (
        f"{left_out.model} is left out, because {left_out.reason}: {left_out.detail}. "
        f"`skerry models remove {left_out.model}` takes it out of the catalog."
    )


def read_topology(path: Path) -> Topology:
    """Return a topology file, checked. Raises `CannotStart`, which says where it is wrong."""
    try:
        return load_topology(path)
    except TopologyError as error:
        raise CannotStart(str(error)) from None
    except OSError as error:
        raise CannotStart(f"cannot read {path}: {error.strerror}") from None


def install_models(names: Sequence[str], home: Home, progress: Progress) -> Installation:
    """Return the models of these ids or aliases, downloaded where they are missing; each once.

    No names: the default models. A model that is broken or gone is left out. Raises `CannotStart`
    for a name that the catalog does not have, and where no model is left.
    """
    try:
        catalog = Catalog.load(home.root)
        store = ModelStore(home.root, hub=Hub.from_environ(os.environ))
        chosen = names or default_models(catalog, store)
        specs = {spec.id: spec for spec in map(catalog.resolve, chosen)}
    except SkerryError as error:
        raise CannotStart(f"{error.message} `skerry models list` shows what there is.") from None
    except CatalogError as error:
        raise CannotStart(str(error)) from None
    models, left_out = [], []
    for spec in specs.values():
        try:
            models.append(InstalledModel(spec, store.pull(spec, progress)))
        except (ModelProblem, OSError) as error:
            left_out.append(left_out_by(spec.id, error))
    return Installation(catalog, models, []).without(left_out)


def default_models(catalog: Catalog, store: ModelStore) -> list[str]:
    """Return ids of the models that `skerry up` serves when none is named.

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


def open_batches(home: Home, state: JetStream | None) -> Batches:
    """Return the queue and the files of the home, made when they are first needed, or those on
    `state`'s servers. With `state`: on its event loop."""
    return Batches(queue=open_queue(home, state), files=_open_files(home, state))


def _open_files(home: Home, state: JetStream | None) -> Files:
    if state is None:
        return FileStore(home.files)
    from skerry_edge.shared.nats_files import NatsFiles

    return NatsFiles(stream_of(state, FILES, home.zone), asyncio.get_running_loop())


def load_texts(models: list[InstalledModel]) -> tuple[dict[str, TextModel], list[LeftOut]]:
    """Return tokenizers and chat templates, by id, of models that make text; and those without
    usable ones."""
    texts, left_out = {}, []
    for model in models:
        if not model.spec.is_encoder:
            window, is_foreign = model.spec.context_window, not is_packaged(model.spec)
            try:
                texts[model.spec.id] = TextModel(
                    model.files, context_window=window, is_foreign=is_foreign
                )
            except TemplateError as error:
                left_out.append(left_out_by(model.spec.id, UnsupportedTemplate(str(error))))
    return texts, left_out


def cors_origins() -> tuple[str, ...]:
    """Return the web pages that may call, from the environment. Raises `CannotStart`."""
    with raised_as(CannotStart, ValueError):
        return cors.origins_from(os.environ)


def edge_hosts() -> frozenset[str]:
    """Return the names that edges answer to, from the environment; none: to all. Raises
    `CannotStart`."""
    try:
        return hosts_of(os.environ.get(HOSTS_VARIABLE, ""))
    except ValueError as error:
        raise CannotStart(f"{HOSTS_VARIABLE}: {error}") from None


def open_responses(home: Home, state: JetStream | None) -> Responses:
    """Return where conversations are kept: on `state`'s servers, or in the home."""
    if state is None:
        return ResponseStore(home.responses)
    from skerry_edge.shared.nats_responses import NatsResponses

    return NatsResponses(stream_of(state, RESPONSES, home.zone))


def _shared_keys(home: Home, state: JetStream | None) -> RequestKeys | None:
    if state is None:
        return None
    from skerry_edge.shared.nats_keys import NatsKeys

    return NatsKeys(stream_of(state, IDEMPOTENCY, home.zone))


def open_stores(
    home: Home, edge: str, state: JetStream | None, count: Callable[[Outcome], None]
) -> Stores:
    """Return where an edge keeps what it remembers of requests; `count` is called with how looking
    for an answer at a shared cache ended. Raises `CannotStart`."""
    with raised_as(CannotStart, ValueError):
        return Stores.in_folder(
            home.stores,
            edge=edge,
            cache_ttl=cache_ttl_from(os.environ),
            keeps_chains=keeps_chains(os.environ),
            idempotency=_shared_keys(home, state),
            share_answers=share_answers(home, os.environ, count),
        )


def load_encoder_texts(models: list[InstalledModel]) -> dict[str, EncoderText]:
    """Load the tokenizers, by id, of models that embed or classify text."""
    return {
        model.spec.id: EncoderText(model.files, max_tokens=model.spec.context_window)
        for model in models
        if model.spec.is_encoder
    }


def credentials(home: Home, tokens: TokenStore, url: str, *, control_url: str = "") -> Config:
    """Return the account and operator's token of this home, made on first use, written where the
    SDK reads them. Raises `CannotStart`, `StateError`."""
    config = read_config(home)
    account_id = new_account_id() if config is None else config.account_id
    token = ""
    with raised_as(CannotStart, TokenStoreError):
        if config is not None:
            tokens.give_roles(account_id)
            token = config.api_token if tokens.authenticate(config.api_token) else ""
        if not token:
            token, record = tokens.create(
                account_id=account_id, name="skerry up", role="operator", now=int(time.time())
            )
            audit = TokenAudit(home.token_audit, "skerry")
            with contextlib.suppress(OSError):  # a full disk: the platform starts all the same
                audit.note("create", record.id, {"role": "operator"})
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
    """Return host and port at which this machine reaches a listener."""
    address: tuple[str, int] = listener.getsockname()[:2]
    host, port = address
    return LOOPBACK.get(host, host), port


def url_of(listener: socket.socket, *, tls: bool = False, host: str = "") -> str:
    """Return where callers reach it: at `host`, where one is given."""
    own, port = reachable(listener)
    return reached_url(host or own, port, tls=tls)


def reached_url(host: str, port: int, *, tls: bool = False) -> str:
    """Return the URL of a port here, or at a name of this machine."""
    scheme, host = "https" if tls else "http", LOOPBACK.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
