"""What one edge is made of. Built once at start-up, shared by every request."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from skerry.errors import ModelNotFound, SkerryError, TaskNotSupported, Unavailable
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.oidc.logins import Logins
from skerry_edge.gate.socket_room import SocketRoom
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.http.edge_calls import ZoneCalls
from skerry_edge.ledger.batches import Batches
from skerry_edge.ledger.responses_store import Responses
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits
from skerry_edge.output.plan import OutputPlanner
from skerry_edge.telemetry.client_rtts import ClientRtts
from skerry_edge.telemetry.metrics import EdgeMetrics
from skerry_edge.telemetry.trace_store import TraceStore
from skerry_edge.telemetry.tracing import TraceRecord
from skerry_edge.text.desk import Desk
from skerry_edge.text.encoder import EncoderText
from skerry_edge.text.model import TextModel
from skerry_regions.geo.region_report import RegionReport
from skerry_regions.models.catalog import Catalog, ModelSpec
from skerry_regions.region.region_figures import SeenFleet
from skerry_regions.spec_types import ConsoleMode
from skerry_regions.wire.client import RegionClient
from skerry_regions.zones import GLOBAL

if TYPE_CHECKING:
    from skerry_edge.gate.steering import Steering

MAX_KEYS = 65_536  # of tenants and zones, 100 bytes each


class CacheKeys(dict[tuple[str, str | None], bytes]):
    """The keys of KV block digests, by tenant and zone: no other tenant can name, or time, its
    prefixes. Derived when they are first needed; of `MAX_KEYS`, all are again.

    Requests bound to a zone have a key of their own, so that what they left in caches is nothing
    that an unbound request could find or fetch.
    """

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self._secret = secret

    def __missing__(self, of: tuple[str, str | None]) -> bytes:
        tenant, zone = of
        scope = tenant.encode() if zone is None else b"%b\0%b" % (tenant.encode(), zone.encode())
        if len(self) >= MAX_KEYS:
            self.clear()
        key = self[of] = hashlib.blake2b(scope, key=self._secret, digest_size=32).digest()
        return key


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The parts behind the routes.

    `texts` maps catalog ids to the text side of the models served that make text, `encoders` of
    those that embed or classify it.

    `secret` (32 bytes or more, the same on every edge of a cluster) derives the tenants' cache
    keys; it is never sent anywhere.
    """

    catalog: Catalog
    texts: Mapping[str, TextModel]
    region: RegionClient
    residency: str = GLOBAL  # the zone in which it stands
    zone_calls: ZoneCalls | None = None  # to edges of others; None: it knows none
    encoders: Mapping[str, EncoderText] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)  # by id: why the start could not
    tokens: TokenStore
    logins: Logins | None = None  # None: API tokens only
    secret: bytes = field(repr=False)
    limits: Limits = field(default_factory=Limits)
    admission: Admission = field(default_factory=Admission)
    sockets: SocketRoom = field(default_factory=SocketRoom)
    responses: Responses | None = None  # None: answers are not remembered
    batches: Batches | None = None  # None: nothing is queued
    stores: Stores = field(default_factory=Stores)
    desk: Desk = field(default_factory=Desk)
    planner: OutputPlanner = field(default_factory=OutputPlanner)
    hosts: frozenset[str] = frozenset()  # that it answers to, beside its address; empty: to all
    cors_origins: tuple[str, ...] = ()  # web pages that may call
    ailment: Callable[[], str | None] = lambda: None  # what is wrong with engines in this process
    metrics: EdgeMetrics = field(default_factory=EdgeMetrics)
    report: Callable[[], RegionReport] = RegionReport  # of its region, to DNS servers
    client_rtts: ClientRtts = field(default_factory=ClientRtts)
    traces: TraceStore = field(default_factory=TraceStore)
    export: Callable[[TraceRecord], None] | None = None  # sends finished traces elsewhere
    steering: Steering | None = None  # None: clients are never sent elsewhere
    log_prompts: bool = False  # the operator wants their text in the log
    console: ConsoleMode = "loopback"  # whom its pages are shown to
    fleet: Callable[[], SeenFleet] = SeenFleet  # what it sees of the platform
    platform: str = ""  # the platform's own account
    control: Callable[[], str] = str  # where its control plane is, for people; empty: not known
    is_ending: Callable[[], bool] = lambda: False  # it drains, and what need not go on ends
    models: Mapping[str, ModelSpec] = field(init=False)  # served here, by id and alias
    cache_keys: CacheKeys = field(init=False)
    clock: Callable[[], float] = time.monotonic  # seconds; for durations
    wall_clock: Callable[[], float] = time.time  # Unix seconds; for timestamps in answers

    def __post_init__(self) -> None:
        if not 32 <= len(self.secret) <= hashlib.blake2b.MAX_KEY_SIZE:
            raise ValueError(f"the edge's secret must have 32 to 64 bytes, got {len(self.secret)}")
        served = (self.texts.keys() | self.encoders.keys()) - self.left_out.keys()
        models = {name: spec for name, spec in self.catalog.names.items() if spec.id in served}
        object.__setattr__(self, "models", models)
        object.__setattr__(self, "cache_keys", CacheKeys(self.secret))

    def spec(self, name: str) -> ModelSpec:
        """Return the model of an id or alias, if it is served here: one of `models`.

        Raises `ModelNotFound`, or `Unavailable` for one that was left out at the start.
        """
        if (known := self.models.get(name)) is not None:
            return known
        spec = self.catalog.resolve(name)
        if (reason := self.left_out.get(spec.id)) is not None:
            raise Unavailable(f"The model {spec.id} is not served, because {reason}.")
        if spec.id not in self.texts and spec.id not in self.encoders:
            raise ModelNotFound(
                f"The model {spec.id} is in the catalog, but is not served here: "
                f"`skerry models pull {spec.id}` installs it for the next `skerry up`.",
                param="model",
            )
        return spec

    def requested(self, name: str) -> ModelSpec:
        """Return the model that a generation names. Counts one that is not here; raises as `spec`
        does."""
        try:
            return self.spec(name)
        except SkerryError as error:
            self.metrics.generations_failed.add(1, "", error.code)  # names from outside are endless
            raise

    def served(self, name: str) -> tuple[ModelSpec, TextModel]:
        """Return a served model that makes text. Raises `ModelNotFound` or `TaskNotSupported`."""
        spec = self.spec(name)
        if spec.id not in self.texts:
            message = f"The model {spec.id} is for {spec.task}; it makes no text."
            raise TaskNotSupported(message, param="model")
        return spec, self.texts[spec.id]

    def encoder(self, name: str) -> tuple[ModelSpec, EncoderText]:
        """Return a served model that embeds text. Raises `ModelNotFound` or `TaskNotSupported`."""
        spec = self.requested(name)
        if spec.id not in self.encoders or spec.embedding is None:
            raise TaskNotSupported(f"The model {spec.id} makes no embeddings.", param="model")
        return spec, self.encoders[spec.id]

    def served_specs(self) -> list[ModelSpec]:
        """Return the models served here, in the catalog's order."""
        return [spec for spec in self.catalog if spec.id in self.texts or spec.id in self.encoders]
