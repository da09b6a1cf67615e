"""Messages between an edge and a node. Token ids only; times are *seconds left*, never wall clocks.

One connection per edge-node pair carries many streams. A stream is one attempt at one request; its
`epoch` grows with each attempt, so that late tokens of an abandoned attempt can be distinguished.

    edge                                   node
      │ ── Hello ──────────────────────────▶ │   versions and builds are compared first
      │ ◀────────────────────────── Hello ── │
      │ ── Submit(stream, …) ──────────────▶ │
      │ ◀──────────────── Accepted(stream) ── │   or Failed at once
      │ ◀──────────────── Tokens(stream) … ── │   zero or more
      │ ── Credit(stream, n) ──────────────▶ │   room for n more Tokens events
      │ ── Abort(stream) ──────────────────▶ │   at any time; harmless after the end
      │ ◀───── Done(stream) | Failed(stream) ─ │  exactly one, the last event of a stream
      │ ── Embed(stream, …) ───────────────▶ │
      │ ◀─ Embedded(stream) | Failed(stream) ─ │  the only event of such a stream
      │ ── ShareKV ────────────────────────▶ │  its blocks go to another node; no answer
      │ ── Ping ─── ◀── Pong(steps) ────────  │   a hung engine shows: its steps stand still

Constraints on fields bind whoever decodes: lengths, counts and ranges from another machine are
refused with their path before anything is built from them. `connection` holds the rules of order.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from skerry_regions.digests import BLOCK_SIZE, DIGEST_SIZE
from skerry_regions.phases import Timeline
from skerry_regions.registry import Member
from skerry_regions.trace_context import TraceContext
from skerry_regions.wire.edge_calls import EdgeAnswer, EdgeCall, StreamId
from skerry_regions.wire.output_marks import CallMarkSpec, ReasoningLimitSpec
from skerry_regions.wire.pins import PinList, Pinned, PromptUse
from skerry_regions.wire.reports import Report
from skerry_regions.zones import Zone

VERSIONS = (1, 2, 3)  # 2 has `Submit.reasoning` and `Submit.pins`, 3 `EdgeCall`
MAX_TOKENS = 1 << 17  # of a prompt or a transcript: the longest context window we know of
MAX_TEXTS = 64  # of one `Embed`
MAX_VECTOR_BYTES = 1 << 19  # of one `Embedded`: 64 vectors of 2,048 dimensions, 32 of 4,096
MAX_MESSAGE = 1024  # characters of an error's sentence
MAX_GRAMMAR = 128 << 10  # characters of a grammar
MAX_LOGPROBS = 128  # alternatives reported per token; the dialects allow 20

TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]  # token ids are int32 in every runner
Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e9)]
Name = Annotated[str, Meta(max_length=256)]  # of a model, an edge, a node, a build
Lease = Annotated[float, Meta(gt=0.0, le=600.0)]  # seconds that KV is waited for
BlockName = Annotated[bytes, Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]
TokenIds = Annotated[list[TokenId], Meta(max_length=MAX_TOKENS)]
Logprob = tuple[TokenId, float]  # natural logarithm; below, of the token and of the likeliest
TokenLogprob = tuple[float, Annotated[list[Logprob], Meta(max_length=MAX_LOGPROBS)]]
LogprobList = Annotated[list[TokenLogprob], Meta(max_length=MAX_TOKENS)]
FinishReason = Literal["stop", "length", "cancelled"]
LogitBias = tuple[TokenId, Annotated[float, Meta(ge=-1e4, le=1e4)]]


class ModelBuild(Struct, frozen=True, kw_only=True):
    """What must agree before token ids of one side mean anything to the other."""

    id: Name  # catalog id
    tokenizer: Name  # hash of the tokenizer's files
    template: Name  # hash of the chat template
    numeric_build: Name = ""  # of the node's runner; an edge, which has no runner, leaves it empty


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
    """The first message of both sides. Each limit in force is the smaller of the two."""

    versions: Annotated[list[int], Meta(min_length=1, max_length=16)]
    id: Name  # of this edge or node
    models: Annotated[list[ModelBuild], Meta(max_length=1024)] = []
    max_streams: Annotated[int, Meta(ge=1, le=1 << 16)] = 1024  # open at once on this connection
    window: Annotated[int, Meta(ge=1, le=1 << 16)] = 64  # Tokens events a stream starts with
    member: Member | None = None  # a node, as it announces itself: for edges without a registry


class Sampling(Struct, frozen=True, kw_only=True):
    """The engine's `SamplingParams` on the wire; the meaning of each field is stated there."""

    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] = 0.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    typical_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] = 1.0
    frequency_penalty: Annotated[float, Meta(ge=-100.0, le=100.0)] = 0.0
    presence_penalty: Annotated[float, Meta(ge=-100.0, le=100.0)] = 0.0
    seed: Annotated[int, Meta(ge=0)] = 0  # 64 bits, unsigned: the most that the encoding holds
    choice: Annotated[int, Meta(ge=0, lt=1 << 16)] = 0
    logit_bias: Annotated[tuple[LogitBias, ...], Meta(max_length=1024)] = ()
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 20)] = 256
    min_tokens: Annotated[int, Meta(ge=0, le=1 << 20)] = 0
    stop_token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=1024)] = ()


class GrammarSpec(Struct, frozen=True, kw_only=True):
    """The engine's `Grammar` on the wire: what the output must look like."""

    kind: Literal["json_schema", "regex", "ebnf"]
    source: Annotated[str, Meta(max_length=MAX_GRAMMAR)]
    calls: CallMarkSpec | None = None
    strict: bool = False  # refused where no whole output is known, to which `max_tokens` could lead


class HandOverTo(Struct, frozen=True, kw_only=True):
    """For a node that has KV, or computes it: push it there."""

    address: Name
    transfer: Annotated[int, Meta(ge=0, lt=1 << 62)]
    token: Annotated[bytes, Meta(min_length=16, max_length=64)]
    max_tokens: Count | None = None  # of the whole output, when its first token is made here
    machine: Name = ""  # that has to be there, where it is known


class HandOverFrom(Struct, frozen=True, kw_only=True):
    """For a node that goes on from there: KV will come; compute it here when it does not."""

    transfer: Annotated[int, Meta(ge=0, lt=1 << 62)]
    token: Annotated[bytes, Meta(min_length=16, max_length=64)]
    lease_seconds: Lease
    source: Name = ""  # the node that shares its cached blocks; empty: a prefill node computes them


class Submit(Struct, frozen=True, kw_only=True, tag="submit"):
    """Start a stream: generate after `prompt_ids + output_ids`.

    `output_ids` is the transcript of earlier attempts, never merged into the prompt: penalties,
    limits, stops, logprobs and usage need the boundary.
    """

    stream: StreamId
    request_id: Annotated[str, Meta(max_length=128)]
    epoch: Count = 0
    trace: TraceContext | None = None  # the span that it is part of
    model: Name
    prompt_ids: TokenIds
    output_ids: TokenIds = []
    sampling: Sampling
    tenant: Annotated[str, Meta(max_length=128)] = ""
    cache_key: Annotated[bytes, Meta(max_length=64)] = b""
    priority: Literal["interactive", "batch"] = "interactive"
    seconds_left: Seconds | None = None
    reject_if_busy: bool = False  # rather than wait for others to end
    residency: Zone | None = None  # that it must not leave
    affinity: Annotated[bytes, Meta(max_length=16)] = b""  # the session that it belongs to
    pins: PinList = ()
    mixed_builds: bool = False  # KV of another numeric build may be used: bits may differ then
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    grammar: GrammarSpec | None = None
    reasoning: ReasoningLimitSpec | None = None
    hand_over_to: HandOverTo | None = None
    hand_over_from: HandOverFrom | None = None


VectorKind = Literal["mean", "cls", "max", "last", "classes"]
"""A text's vector by pooling, or the scores of its classes before softmax or sigmoid."""


class Embed(Struct, frozen=True, kw_only=True, tag="embed"):
    """Start a stream whose one event is `Embedded`: each text's token ids to one vector."""

    stream: StreamId
    request_id: Annotated[str, Meta(max_length=128)]
    model: Name
    texts: Annotated[list[TokenIds], Meta(min_length=1, max_length=MAX_TEXTS)]
    pooling: VectorKind
    normalize: bool
    second_starts: Annotated[list[Count], Meta(max_length=MAX_TEXTS)] = []
    """Of texts of two parts: how many tokens come before the second one."""
    priority: Literal["interactive", "batch"] = "interactive"
    residency: Zone | None = None  # that it must not leave


class ShareKV(Struct, frozen=True, kw_only=True, tag="share_kv"):
    """Send a prompt's first blocks to the node that computes the rest, as far as they are cached.

    That node hears of the outcome, not the edge. After `lease_seconds` none waits for it."""

    model: Name
    digests: Annotated[list[BlockName], Meta(max_length=MAX_TOKENS // BLOCK_SIZE)]
    to: HandOverTo
    lease_seconds: Lease
    residency: Zone | None = None  # that the request must not leave


class Abort(Struct, frozen=True, kw_only=True, tag="abort"):
    """Stop a stream and free its blocks. Ended streams are ignored."""

    stream: StreamId


class Credit(Struct, frozen=True, kw_only=True, tag="credit"):
    """The edge has room for `count` more `Tokens` events of a stream. Ended streams are ignored."""

    stream: StreamId
    count: Annotated[int, Meta(ge=1, le=1 << 16)]


class Ping(Struct, frozen=True, kw_only=True, tag="ping"):
    """Wants a sign of life; `nonce` comes back in the `Pong`."""

    nonce: Count


class Accepted(Struct, frozen=True, kw_only=True, tag="accepted"):
    """The node took the stream: what follows is tokens, however long the first one takes.

    It comes at once, or when the stream's grammar is compiled: `Failed` says that it cannot be.
    """

    stream: StreamId


class Tokens(Struct, frozen=True, kw_only=True, tag="tokens"):
    """Tokens of one step. `index` is the output position of the first (transcript included)."""

    stream: StreamId
    index: Count
    token_ids: TokenIds
    logprobs: LogprobList | None = None  # one per token
    prompt_logprobs: LogprobList | None = None  # of this step's chunk of the prompt
    withheld: bool = False  # a call that no longer fits would have begun at one of them
    led: bool = False  # one of them took the place of the model's, to end in time
    prompt: PromptUse | None = None  # with the first one, where it was computed


class PhaseUsage(Struct, frozen=True, kw_only=True):
    """What the stream cost, per phase."""

    prompt_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    queue_seconds: Seconds
    prefill_seconds: Seconds
    decode_seconds: Seconds
    pinned: Pinned | None = None  # of requests with pins


class Done(Struct, frozen=True, kw_only=True, tag="done"):
    """The stream ended well, or was aborted."""

    stream: StreamId
    finish_reason: FinishReason
    usage: PhaseUsage
    timeline: Timeline | None = None  # of streams that an engine finished


class Embedded(Struct, frozen=True, kw_only=True, tag="embedded"):
    """The vectors of an `Embed`: f32[texts, numbers], little-endian, in the texts' order."""

    stream: StreamId
    vectors: Annotated[bytes, Meta(min_length=4, max_length=MAX_VECTOR_BYTES)]


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """The stream ended badly. `code` is a code of `skerry.errors`."""

    stream: StreamId
    code: Annotated[str, Meta(max_length=64)]
    message: Annotated[str, Meta(max_length=MAX_MESSAGE)]
    retry_after: Seconds | None = None


class EngineBeat(Struct, frozen=True, kw_only=True):
    """One engine's pulse: while it has requests, `steps` must grow from one `Pong` to the next."""

    model: Name
    steps: Count
    running: Count
    waiting: Count = 0


class Pong(Struct, frozen=True, kw_only=True, tag="pong"):
    """Answer to a `Ping`: sent by the event loop, so it says how each engine thread is doing."""

    nonce: Count
    engines: Annotated[list[EngineBeat], Meta(max_length=1024)] = []


class SnapshotWanted(Struct, frozen=True, kw_only=True, tag="snapshot_wanted"):
    """The edge missed changes of a model's prefix cache."""

    model: Name


Event = Tokens | Done | Failed  # of a stream of tokens
AnyEvent = Event | Embedded | EdgeAnswer
EdgeMessage = Hello | Submit | Embed | EdgeCall | ShareKV | Abort | Credit | Ping | SnapshotWanted
NodeMessage = Hello | Accepted | Tokens | Done | Embedded | EdgeAnswer | Failed | Pong | Report
