"""What every edge is made of, wherever its nodes are: in this process, or behind connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skerry_cli.composition.configured import configured
from skerry_cli.composition.listening import Front
from skerry_cli.home.errors import StateError
from skerry_cli.home.keys import secret
from skerry_cli.home.parts import (
    Installation,
    InstalledModel,
    cors_origins,
    edge_hosts,
    load_encoder_texts,
    load_texts,
    open_batches,
    open_responses,
    open_stores,
)
from skerry_cli.home.shared_state import opened_state, shared_usage
from skerry_cli.home.state import JOURNAL_NAME, Home, known_config
from skerry_cli.logs import logs_prompts
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_edge.telemetry.otlp import OTLPNotInstalled, is_configured, open_exporter
from skerry_edge.telemetry.trace_store import TraceStore
from skerry_edge.telemetry.tracing import TraceRecord
from skerry_edge.text.encoder import EncoderText
from skerry_edge.text.model import TextModel
from skerry_regions.models.catalog import Catalog, ModelSpec
from skerry_regions.models.problems import LeftOut
from skerry_regions.process.startup import on_thread, unless
from skerry_regions.wire.client import RegionClient
from skerry_regions.wire.protocol import VERSIONS, Hello, ModelBuild

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The models of an edge, and the text side of each."""

    catalog: Catalog
    models: list[InstalledModel]
    texts: Mapping[str, TextModel]  # by id, of those that make text
    encoders: Mapping[str, EncoderText]  # of the others
    left_out: list[LeftOut]

    @classmethod
    async def load(cls, installed: Installation, stop: asyncio.Event) -> ServedModels:
        """Load tokenizers and templates on a thread. Raises `CannotStart` or `Interrupted`."""
        models = installed.models
        texts, left_out = await unless(stop, on_thread(lambda: load_texts(models)))
        encoders = await unless(stop, on_thread(lambda: load_encoder_texts(models)))
        kept = installed.without(left_out)
        return cls(kept.catalog, kept.models, texts, encoders, kept.left_out)

    @property
    def specs(self) -> list[ModelSpec]:
        return [model.spec for model in self.models]

    def hello(self, id: str) -> Hello:
        """Return what an edge of that id greets nodes with."""
        builds = [
            ModelBuild(
                id=model.spec.id,
                tokenizer=model.files.tokenizer_digest,
                template=model.files.template_digest,
            )
            for model in self.models
        ]
        return Hello(versions=[*VERSIONS], id=id, models=builds)

    def without(self, left_out: Sequence[LeftOut]) -> ServedModels:
        """Leave more out. Raises `CannotStart` when nothing remains."""
        kept = Installation(self.catalog, self.models, self.left_out).without(left_out)
        ids = {model.spec.id for model in kept.models}
        texts = {id: text for id, text in self.texts.items() if id in ids}
        encoders = {id: text for id, text in self.encoders.items() if id in ids}
        return ServedModels(self.catalog, kept.models, texts, encoders, kept.left_out)


@contextlib.asynccontextmanager
async def assembled(
    offer: ServedModels,
    front: Front,
    client: RegionClient,
    home: Home,
    *,
    id: str,
    region: str,
    tokens: TokenStore,
    metrics: EdgeMetrics,
    edges: Callable[[], int] = lambda: 1,
    hosts: frozenset[str] = frozenset(),
    **more: Any,
) -> AsyncGenerator[Edge]:
    """Give the edge `id` of a `region` that `client` reaches, one of `edges` that share limits.

    While entered it follows the files of its home. `more` is for `Edge`. Raises `CannotStart`.
    """
    platform = known_config(home).account_id
    logins = Logins(platform)
    async with (
        exporting(id, region) as export,
        opened_state(home, os.environ, id) as state,
    ):
        stores = open_stores(home, id, state, lambda outcome: metrics.answers.add(1, outcome))
        journal = stores.journal
        async with (
            shared_usage(home, home.stores / JOURNAL_NAME, id, state),
            configured(
                home,
                offer.catalog,
                tokens,
                front.limits,
                logins=logins,
                edges=edges,
                certificate=front.certificate,
                unwritten=lambda: 0.0 if journal is None else journal.seconds_unwritten,
                state=state,
            ) as admission,
        ):
            yield Edge(
                catalog=offer.catalog,
                texts=offer.texts,
                encoders=offer.encoders,
                left_out={each.model: each.reason for each in offer.left_out},
                region=client,
                tokens=tokens,
                logins=logins,
                platform=platform,
                control=lambda: _control_url(home),
                admission=admission,
                secret=secret(home),
                limits=front.limits,
                responses=open_responses(home, state),
                batches=open_batches(home, state),
                stores=stores,
                metrics=metrics,
                hosts=hosts | edge_hosts(),
                cors_origins=cors_origins(),
                traces=TraceStore(id),
                export=export,
                log_prompts=logs_prompts(),
                **more,
            )


@contextlib.asynccontextmanager
async def exporting(edge: str, region: str) -> AsyncGenerator[Callable[[TraceRecord], None] | None]:
    """Give what takes finished traces until the block ends; then what is left is sent.

    They go to a collector where one is configured. Missing packages are logged and cost spans, not
    the platform.
    """
    exporter = None
    if is_configured(os.environ):
        try:
            exporter = await asyncio.to_thread(open_exporter, edge, region)
        except OTLPNotInstalled as error:
            logger.warning("no spans are exported: %s", error)
    try:
        yield None if exporter is None else exporter.export
    finally:
        if exporter is not None:
            await asyncio.to_thread(exporter.close)


def _control_url(home: Home) -> str:
    """Return where the home's control plane is; empty where nothing says so."""
    with contextlib.suppress(StateError):
        return known_config(home).control_url
    return ""
