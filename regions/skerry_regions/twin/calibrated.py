"""A scenario made of what a platform showed: its pools, regions and links, and its requests."""

from __future__ import annotations

import csv
import io
import sqlite3
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from skerry_regions.speeds import COEFFICIENTS
from skerry_regions.twin.fitting import FitError, FittedLaw
from skerry_regions.twin.scenario import (
    Routing,
    Scenario,
    SimulatedLink,
    SimulatedPool,
    SimulatedRegion,
    SimulatedTraffic,
)
from skerry_regions.twin.traces import CHAIN_COLUMN, journal_rows
from skerry_regions.view import Role

LEAST_RTT = 1e-4  # seconds


class Journaled(Struct, frozen=True, kw_only=True):
    """One completed request of a usage journal."""

    admitted: float  # seconds
    prompt_tokens: int
    output_tokens: int
    overhead: float  # seconds of it that it was at no node: template, tokens, network, delivery
    edge: str
    chain: bytes = b""  # of its prompt: `skerry_regions.digests.prefix_chain`


class SeenPool(Struct, frozen=True, kw_only=True):
    """Equal nodes of one region."""

    region: str
    role: Role
    nodes: list[str]  # by name, those that were measured
    cache_tokens: int  # of each
    law: FittedLaw
    tokens_per_step: float = 1.0  # of a stream: what speculation brought


class CalibratedPlatform(Struct, frozen=True, kw_only=True):
    """All of it."""

    pools: list[SeenPool]
    edges: Mapping[str, str]  # region by edge
    rtts: Mapping[tuple[str, str], float]  # between regions, seconds


def journaled(path: Path, since: float) -> list[Journaled]:
    """Return the requests of a journal's own edges that were admitted since, and completed, by
    admission.

    Raises `FitError`.
    """
    columns = (
        "admitted, prompt_tokens, output_tokens, edge,"
        " settled - admitted - queue_seconds - prefill_seconds - decode_seconds"
    )
    completed = (
        "admitted >= ? AND outcome = 'completed' AND output_tokens > 0"
        " AND prompt_tokens > 0 AND settled IS NOT NULL"
        " AND life <> ''"  # other homes' edges send rows without chains
    )
    try:
        rows = journal_rows(path, columns, completed, (since,))
    except sqlite3.Error as error:
        raise FitError(f"{path}: not a usage journal: {error}") from None
    return [
        Journaled(
            admitted=at, prompt_tokens=prompt, output_tokens=output, edge=edge,
            overhead=max(rest, 0.0), chain=chain,
        )
        for at, prompt, output, edge, rest, chain in rows
    ]  # fmt: skip


def scenario_of(
    seen: CalibratedPlatform, requests: Sequence[Journaled], trace: str, name: str
) -> Scenario:
    """Return what was seen as a scenario that replays `requests` from a file called `trace`.

    Raises `FitError`.
    """
    if not requests:
        raise FitError("no request was completed meanwhile: ask the platform something")
    regions = sorted({pool.region for pool in seen.pools} | set(seen.edges.values()))
    overhead = statistics.median(each.overhead for each in requests)
    outputs = statistics.fmean(each.output_tokens for each in requests)
    came = [seen.edges.get(each.edge, regions[0]) for each in requests]
    return Scenario(
        name=name,
        regions=[
            SimulatedRegion(
                name=region,
                edges=max(sum(each == region for each in seen.edges.values()), 1),
                edge_seconds=round(overhead, 6),
            )
            for region in regions
        ],
        pools=[
            SimulatedPool(
                name=f"pool{number}",
                region=pool.region,
                role=pool.role,
                replicas=len(pool.nodes),
                speed=_rounded(pool.law),
                factors=[round(pool.law.factors.get(node, 1.0), 4) for node in pool.nodes],
                noise=round(pool.law.noise, 4),
                cache_tokens=pool.cache_tokens,
                tokens_per_step=round(pool.tokens_per_step, 3),
            )
            for number, pool in enumerate(seen.pools)
        ],
        links=[
            SimulatedLink(between=(a, b), rtt=max(rtt, LEAST_RTT))
            for (a, b), rtt in sorted(seen.rtts.items())
        ],
        router=Routing(expected_output=round(outputs, 1)),  # edges know each request's limit
        traffic=[
            SimulatedTraffic(
                regions={region: came.count(region) for region in sorted(set(came))}, trace=trace
            )
        ],
    )


def trace_of(requests: Sequence[Journaled]) -> str:
    """Return requests as a trace of BurstGPT's form, seconds from the first one, with chains."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("Timestamp", "Request tokens", "Response tokens", CHAIN_COLUMN))
    start = min((each.admitted for each in requests), default=0.0)
    for each in requests:
        at, chain = f"{each.admitted - start:.6f}", each.chain.hex()
        rows.writerow((at, each.prompt_tokens, each.output_tokens, chain))
    return text.getvalue()


def as_yaml(scenario: Scenario, seen: Sequence[SeenPool]) -> str:
    """Return a scenario's file, without what is as by default; how sure it is as comments."""
    document = _without_defaults(msgspec.to_builtins(scenario), Scenario)
    notes = [
        f"# pool{number}: {pool.law.rows} readings; standard errors "
        + ", ".join(
            f"{name} {error:.2g}" for name, error in zip(COEFFICIENTS, pool.law.errors, strict=True)
        )
        + f"; {pool.law.gap:.2g} s of base lie between steps"
        + ("" if pool.law.has_pairs else "; prompts too short to show per_pair")
        for number, pool in enumerate(seen)
    ]
    return "\n".join([*notes, yaml.safe_dump(document, sort_keys=False)])


def _rounded(fitted: FittedLaw) -> Any:
    law = fitted.law
    rounded = {name: float(f"{getattr(law, name):.6g}") for name in COEFFICIENTS}
    return msgspec.structs.replace(law, **rounded)


def _without_defaults(document: Any, kind: Any) -> Any:
    """Leave out of a document what a type has by default; one level of lists is looked into."""
    kinds = {
        "regions": SimulatedRegion, "pools": SimulatedPool, "links": SimulatedLink,
        "traffic": SimulatedTraffic,
    }  # fmt: skip
    defaults = {
        field.name: field.default
        if field.default is not msgspec.NODEFAULT
        else (field.default_factory() if field.default_factory is not msgspec.NODEFAULT else None)
        for field in msgspec.structs.fields(kind)
    }
    kept = {}
    for key, value in document.items():
        if value == msgspec.to_builtins(defaults.get(key)):
            continue
        within = kinds.get(key)
        kept[key] = (
            [_without_defaults(each, within) for each in value]
            if (within is not None and isinstance(value, list))
            else value
        )
    return kept
