"""The router's nouns: what a request needs (`Demand`), where it may run (`Placement`), and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

MAX_EXPLANATION = 2048  # characters: proxies refuse headers of more than a few kilobytes
EVERYTHING: Mapping[str, int] = MappingProxyType({})

Candidates = Literal["all", "indexed"]


class RouterConfig(Struct, frozen=True, kw_only=True):
    """The weights say what a second is worth, in seconds until a first token.

    A second of decoding is worth little, this request's as anybody's: text is made faster than it
    is read. Where the two were weighed unlike, requests were split for what they gained there.
    """

    block_size: int = 64  # tokens per digest
    alternatives: int = 4  # placements returned: the best, and where to go when it fails
    candidates: Candidates = "indexed"  # priced: every node, or beyond `exhaustive_nodes` a few
    exhaustive_nodes: int = 64  # up to here all nodes are priced
    indexed_nodes: int = 16  # from here on the compiled index is used, where it can be
    num_holders: int = 16  # of the prefix among the candidates, those cheapest by a rough price
    num_least: int = 16  # of the least work among them, and as many of the fastest steps
    num_random: int = 4
    sampled_nodes: int = 8  # without an index: random ones of each role, and best holders
    num_peers: int = 2  # holders of the longest prefixes that a fetch is considered from
    decode_weight: float = 0.05
    behind_weight: float = 1.0
    evict_weight: float = 1.0
    affinity_seconds: float = 0.05  # that a session's own node may be dearer than another
    rate_seconds: float = 30.0  # memory of the arrival rate
    reuse_tokens: float = 1e6  # memory of the share of prompts found in caches
    booking_seconds: float = 600.0  # a booking that was not released lapses after this
    max_bookings: int = 65_536


class Demand(Struct, frozen=True, kw_only=True):
    """What a request needs, as far as routing cares."""

    model: str
    origin: str  # region of the edge that places
    prompt_tokens: int  # at least 1; a transcript that goes on counts its output here
    digests: Sequence[bytes] = ()  # of the prompt's full blocks, in order
    output_tokens: float = 256.0  # still expected
    residency: str | None = None  # zone that the request must not leave
    affinity: bytes = b""  # the session that it belongs to
    exclude: frozenset[str] = frozenset()  # nodes that failed this request before
    numeric_builds: frozenset[str] = frozenset()  # that made the output so far; others come last
    mixed_builds: bool = False  # whether KV of another build may be used
    only_region: str | None = None  # that it must not leave either
    any_role: bool = False  # whether prefill nodes may decode: nothing else is left


class Fetch(Struct, frozen=True, kw_only=True):
    """Copy blocks [first, last) of the prompt to the prefill node, which computes the rest."""

    source: str  # node; the prefill node itself for its file tier
    first: int
    last: int


class Placement(Struct, frozen=True, kw_only=True):
    """One way to run a request. `terms` are seconds by name; their sum is `seconds`."""

    prefill: str
    decode: str
    fetch: Fetch | None
    cached_tokens: int  # expected on the prefill node, fetched ones included
    terms: Mapping[str, float]
    seconds: float
    same_build: bool = True  # False: goes on with another numeric build than the output so far
    is_exact: bool = True  # False: goes on, but perhaps not with the bits of an undisturbed run
    is_mixed: bool = False  # KV goes to a node of another numeric build
    unpriced: Mapping[str, int] = EVERYTHING
    """On the best one: how many nodes were never priced, by why. `index`: not among the cheapest
    holders, nor the least busy, nor the fastest, nor drawn; `draining`; `away`: no connection;
    `zone`: outside the request's zone or region; `failed`: tried before."""

    @property
    def is_split(self) -> bool:
        return self.prefill != self.decode

    @property
    def path(self) -> str:
        """Return `prefill>decode`, or the one node that does both."""
        return f"{self.prefill}>{self.decode}" if self.is_split else self.decode


def explain(placements: Sequence[Placement]) -> str:
    """Return the decision as an RFC 8941 list, best first: the value of an `x-skerry-explain`
    header.

    `"p0>d1";total=412.3;cached=2048;queue=100.2;prefill=290.1, "d0";total=520.0;…` in milliseconds
    and tokens; terms below half a microsecond are left out. At most `MAX_EXPLANATION` characters of
    printable ASCII: the last placements are left out for it.
    """
    text = ""
    for placement in placements:
        longer = ", ".join(filter(None, (text, _explain_one(placement))))
        if len(longer) > MAX_EXPLANATION:
            break
        text = longer
    return text


def _explain_one(placement: Placement) -> str:
    parts = [
        _quoted(placement.path),
        f"total={_milliseconds(placement.seconds)}",
        f"cached={placement.cached_tokens}",
    ]
    if placement.fetch is not None:
        parts.append(f"from={_quoted(placement.fetch.source)}")
    notes = {
        "other-build": not placement.same_build,
        "best-effort": not placement.is_exact,
        "mixed-builds": placement.is_mixed,
    }
    parts += [note for note, holds in notes.items() if holds]
    parts += [f"unpriced-{why}={count}" for why, count in placement.unpriced.items() if count]
    parts += [
        f"{name}={_milliseconds(value)}" for name, value in placement.terms.items() if value >= 5e-7
    ]
    return ";".join(parts)


def _milliseconds(seconds: float) -> str:
    return f"{min(seconds * 1e3, 1e11):.3f}"  # as many digits as a decimal may have there


def _quoted(text: str) -> str:
    """Return a string of RFC 8941, whatever a node calls itself."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
