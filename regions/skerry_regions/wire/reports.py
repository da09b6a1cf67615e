"""What nodes report of themselves, several times a second; `protocol` has the other messages."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from skerry_regions.phases import Count, Seconds
from skerry_regions.prefix_news import PrefixDelta, PrefixSnapshot
from skerry_regions.routing.summaries import RegionSummary
from skerry_regions.speeds import StepSample
from skerry_regions.view import NodeLoad

REPORT_SECONDS = 0.25  # between reports of a node
MAX_FETCHED = 64  # transfers in one report
MAX_SENT = 4096  # requests in one report
MAX_BANDWIDTH = 1e15

Name = Annotated[str, Meta(max_length=256)]  # of a model or a node
Bandwidth = Annotated[float, Meta(ge=0.0, le=MAX_BANDWIDTH)]  # bytes per second


class Fetched(Struct, frozen=True, kw_only=True):
    """KV that the node was sent by another, from requesting it to the last byte."""

    source: Name  # node
    num_bytes: Count
    seconds: Seconds


class SentRequest(Struct, frozen=True, kw_only=True, array_like=True):
    """A request that an edge sent to nodes of its region, for the other edges there."""

    prefill: Name  # node
    decode: Name
    prompt_tokens: Count
    cached_tokens: Count
    age: Seconds  # since it was sent


class EngineWork(Struct, frozen=True, kw_only=True, array_like=True):
    """What an engine has done since its start, and its KV blocks: for people, not for a router."""

    busy_seconds: Seconds
    looked_up_tokens: Count  # of prompts, in the prefix cache …
    hit_tokens: Count  # … and found there
    blocks: Count
    blocks_used: Count


class Report(Struct, frozen=True, kw_only=True, tag="report"):
    """How one engine of the node does, several times a second: what a router needs to know.

    `prefixes` continues the node's numbered changes (see `prefixes`), or is everything it holds:
    at the start of a connection, and when `SnapshotWanted` requested it.
    """

    model: Name
    load: NodeLoad
    load_age: Seconds = 0.0  # streams submitted since then are not in it
    sample: StepSample | None = None  # of the steps since the last report
    fetched: Annotated[list[Fetched], Meta(max_length=MAX_FETCHED)] = []  # likewise
    file_bandwidth: Bandwidth = 0.0  # bytes per second that the file tier gives back; 0: none
    prefixes: PrefixDelta | PrefixSnapshot | None = None
    region: RegionSummary | None = None  # from an edge: of its region's nodes; the rest is empty
    sent: Annotated[list[SentRequest], Meta(max_length=MAX_SENT)] = []
    """From an edge to those of its own region; the rest is empty."""
    work: EngineWork | None = None
