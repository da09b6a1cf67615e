"""One node: models on their worker threads, streams between them and whoever called."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from skerry.errors import ModelNotFound, Unavailable
from skerry_core.engine.engine import Engine
from skerry_core.engine.figures import Statistics
from skerry_regions import zones as residency
from skerry_regions.kv.connector import KVConnector
from skerry_regions.node.encoders import Encoding, ServedEncoder
from skerry_regions.node.encoders import Sink as EncoderSink
from skerry_regions.node.grammar.grammars import Grammars
from skerry_regions.node.metrics import NodeMetrics
from skerry_regions.node.rejections import State
from skerry_regions.node.reporting import Reporter
from skerry_regions.node.served_model import ServedModel
from skerry_regions.node.stream import NodeStream, Sink
from skerry_regions.view import Role
from skerry_regions.wire.edge_calls import EdgeAnswer, EdgeCall
from skerry_regions.wire.link_auth import NO_CREDENTIALS, LinkCredentials
from skerry_regions.wire.protocol import Embed, EngineBeat, Failed, ShareKV, Submit
from skerry_regions.wire.reports import Report

if TYPE_CHECKING:
    from skerry_core.encoder.encoder import Encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """One model of a node as `skerry status` shows it."""

    node: str
    pid: int
    role: Role
    region: str
    model: str
    state: State
    streams: int


class Node:
    """Some models, each with its engine on a thread of its own.

    Create it, and call it, on the thread of `loop`.
    """

    def __init__(
        self,
        *,
        id: str,
        region: str,
        loop: asyncio.AbstractEventLoop,
        role: Role = "hybrid",
        incarnation: int = 0,
        zone: str = residency.GLOBAL,
        reports: bool = True,
    ) -> None:
        """Without `reports` its engines report to no edge: the only one is in this process."""
        self.id = id
        self.incarnation = incarnation  # grows each time a node of this id starts
        self.region = region
        self.zone = zone
        self.role: Role = role
        self._loop = loop
        self._has_reports = reports
        self._served: dict[str, ServedModel] = {}
        self._encoders: dict[str, ServedEncoder] = {}
        self.metrics = NodeMetrics(self.statistics)

    def statistics(self) -> dict[str, Statistics]:
        """Return the figures of each engine, by model."""
        return {model: served.statistics() for model, served in self._served.items()}

    def serve(
        self,
        model: str,
        engine: Engine,
        grammars: Grammars | None = None,
        credentials: LinkCredentials = NO_CREDENTIALS,
    ) -> None:
        """Start the engine's worker; from now on `model` (a catalog id) takes streams.

        Without `grammars`, which the node then owns, it takes none that must follow one.
        `credentials` are of KV transfers.
        """
        self._check_new(model)
        reporter = Reporter(self.id, self.incarnation, model, engine) if self._has_reports else None
        self._served[model] = ServedModel(
            model, engine, reporter, grammars, self._loop, self.metrics, credentials
        )

    def serve_encoder(self, model: str, encoder: Encoder) -> None:
        """Start the encoder's worker; from now on `model` takes texts to embed."""
        self._check_new(model)
        self._encoders[model] = ServedEncoder(model, encoder, self._loop)

    @property
    def encoders(self) -> frozenset[str]:
        """Return models that embed."""
        return frozenset(self._encoders)

    def _check_new(self, model: str) -> None:
        if model in self._served or model in self._encoders:
            raise ValueError(f"{model} is served already")

    @property
    def models(self) -> frozenset[str]:
        """Return models that take streams now."""
        return frozenset(served.model for served in self._all() if served.state == "ready")

    def submit(self, submit: Submit, sink: Sink) -> NodeStream:
        """Start a stream; its events go to `sink`, never before this returns.

        Raises `ModelNotFound`, `InvalidInput`, `PromptTooLong`, `Overloaded` (with `retry_after`),
        `RequestTimeout` (no seconds left), `Unavailable` (the engine is gone) or `ResidencyUnmet`.
        A stream of the same request with a lower epoch is an attempt given up elsewhere: it is
        aborted.
        """
        if submit.residency is not None:
            residency.check(submit.residency, self.zone, f"node {self.id}")
        return self._taking(submit.model).submit(submit, sink)

    def _taking(self, model: str) -> ServedModel:
        """Return what serves a model. Raises ModelNotFound."""
        served = self._served.get(model)
        if served is None:
            known = ", ".join(sorted(self._served)) or "no model"
            raise ModelNotFound(f"this node serves {known}, not {model}", param="model")
        return served

    def embed(self, embed: Embed, sink: EncoderSink) -> Encoding:
        """Start to embed; the one event goes to `sink`, never before this returns.

        Raises `ModelNotFound`, `InvalidInput`, `Overloaded` (with `retry_after`), `Unavailable` or
        `ResidencyUnmet`.
        """
        residency.check(embed.residency, self.zone, f"node {self.id}")
        encoder = self._encoders.get(embed.model)
        if encoder is None:
            known = ", ".join(sorted(self._encoders)) or "no model"
            raise ModelNotFound(f"this node embeds by {known}, not {embed.model}", param="model")
        return encoder.submit(embed, sink)

    def call(self, call: EdgeCall, sink: Callable[[EdgeAnswer | Failed], None]) -> NoReturn:
        """Raises Unavailable: edges answer clients."""
        raise Unavailable(f"node {self.id} keeps nothing of clients")

    def share(self, share: ShareKV) -> None:
        """Start to send cached KV to another node. Raises `ModelNotFound`, `InvalidInput` (a wrong
        address) or `ResidencyUnmet`."""
        residency.check(share.residency, self.zone, f"node {self.id}")
        self._taking(share.model).connector.share(share)

    def connector(self, model: str) -> KVConnector:
        """Return where KV of a served model comes and goes; it must listen before edges name it."""
        return self._served[model].connector

    def reports(self) -> list[Report]:
        """Report what is new of each engine since the last call."""
        return [reporter.report() for reporter in self._reporters()]

    def queue_seconds(self) -> float:
        """Return the seconds that the longest queue of an engine takes."""
        return max((reporter.queue_seconds() for reporter in self._reporters()), default=0.0)

    def snapshots(self) -> list[Report]:
        """Report everything of each engine; `reports` go on from there."""
        return [reporter.snapshot() for reporter in self._reporters()]

    def beats(self) -> list[EngineBeat]:
        """Return the pulse of each engine: one that has work and makes no steps hangs."""
        return [served.beat() for served in self._all()]

    def status(self) -> list[ModelStatus]:
        return [
            ModelStatus(
                node=self.id,
                pid=os.getpid(),
                role=self.role,
                region=self.region,
                model=served.model,
                state=served.state,
                streams=served.num_streams,
            )
            for served in self._all()
        ]

    async def close(self) -> None:
        """Fail what runs with `Unavailable`, stop the engines' threads and free their memory."""
        await asyncio.gather(*(served.close() for served in self._all()))

    def _reporters(self) -> list[Reporter]:
        found = (served.reporter for served in self._served.values())
        return [reporter for reporter in found if reporter is not None]

    def _all(self) -> Iterator[ServedModel | ServedEncoder]:
        yield from self._served.values()
        yield from self._encoders.values()
