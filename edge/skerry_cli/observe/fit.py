"""`skerry simulate --fit`: a scenario of the platform that runs, calibrated from what it counts."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from skerry_cli.home.state import Home, known_config
from skerry_cli.observe.status import NOT_RUNNING, followed_status
from skerry_cli.observe.usage import journal_files
from skerry_cli.output import complain, note, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from skerry_cli.home.control import Status
    from skerry_cli.observe.overview import NodeFigures, Overview
    from skerry_regions.speeds import StepSample
    from skerry_regions.twin.calibrated import CalibratedPlatform, SeenPool

LOOK_SECONDS = 1.0
BLOCK = 64  # tokens


def fit(args: argparse.Namespace) -> int:
    """Watch the platform for `args.seconds`, write a scenario and a trace beside it; return the
    process's exit status."""
    from skerry_regions.twin.calibrated import as_yaml, journaled, scenario_of, trace_of
    from skerry_regions.twin.fitting import FitError

    home, file = Home.from_environ(os.environ), args.scenario
    trace = file.with_suffix(".csv")
    for path in (file, trace):
        if path.exists():
            return complain(f"{path} exists; give another name.")
    if (read := followed_status(home)) is None:
        return complain(NOT_RUNNING)
    since = time.time()
    note(f"watching for {args.seconds:g} s what nodes count; ask the platform what it is to be"
         " calibrated by")  # fmt: skip
    try:
        token = known_config(home).api_token
        looks = asyncio.run(_watch(read, token, args.seconds))
        seen = platform_of(looks)
        requests = [each for path in journal_files(home) for each in journaled(path, since)]
        requests.sort(key=lambda each: each.admitted)
        scenario = scenario_of(seen, requests, trace.name, file.stem[:80])
    except FitError as error:
        return complain(f"{error}.")
    file.write_text(as_yaml(scenario, seen.pools))
    trace.write_text(trace_of(requests))
    say(f"{file} and {trace}: {len(requests):,} requests, {len(seen.pools)} pools")
    return 0


async def _watch(read: Callable[[], Status], token: str, seconds: float) -> list[Overview]:
    """Look each second."""
    from skerry_cli.observe.overview import look

    looks = [await look(read, token)]
    while looks[-1].at - looks[0].at < seconds:
        await asyncio.sleep(LOOK_SECONDS)
        looks.append(await look(read, token))
    return looks


def platform_of(looks: Sequence[Overview]) -> CalibratedPlatform:
    """Return what a platform is, and how fast its nodes are. Raises `FitError`."""
    from skerry_core.config import EngineConfig
    from skerry_regions.twin.calibrated import CalibratedPlatform, SeenPool
    from skerry_regions.twin.fitting import FitError, readings
    from skerry_regions.twin.fitting import fit as fit_law

    engine = EngineConfig()
    pools: dict[tuple[str, str, str], list[NodeFigures]] = defaultdict(list)
    for node in looks[-1].nodes:
        if node.engine is not None:
            pools[node.region, node.role, node.model].append(node)
    if len({model for _, _, model in pools}) > 1:
        raise FitError("several models are served; a scenario has one")
    rows = readings([(each.at, _sums(each)) for each in looks])
    seen: list[SeenPool] = []
    for (region, role, _), nodes in sorted(pools.items()):
        own = {node.id for node in nodes}
        law = fit_law(
            [row for row in rows if row.node in own],
            chunk_tokens=engine.max_step_tokens,
            gap_seconds=engine.max_gap_seconds,
        )
        tokens = max(node.engine.blocks for node in nodes if node.engine) * BLOCK
        seen.append(
            SeenPool(
                region=region,
                role=role,  # type: ignore[arg-type]  # a node announced it
                nodes=sorted(own),
                cache_tokens=tokens,
                law=law,
                tokens_per_step=_tokens_per_step(looks, own),
            )
        )
    edges = {edge.id: edge.region for edge in looks[-1].edges}
    rtts = {
        (min(edge.region, other), max(edge.region, other)): rtt
        for edge in looks[-1].edges
        for other, rtt in edge.rtt.items()
        if other != edge.region and any(key[0] == other for key in pools)
    }
    return CalibratedPlatform(pools=seen, edges=edges, rtts=rtts)


def _tokens_per_step(looks: Sequence[Overview], nodes: set[str]) -> float:
    """Return how many tokens a stream got in a step, those of accepted drafts among them."""
    sums = [
        [
            sum(
                getattr(node.engine, name)
                for node in look.nodes
                if node.id in nodes and node.engine
            )
            for name in ("accepted_tokens", "stream_steps")
        ]
        for look in (looks[0], looks[-1])
    ]
    (accepted, steps), (accepted_then, steps_then) = sums
    return 1.0 + float(max(accepted_then - accepted, 0) / max(steps_then - steps, 1))


def _sums(of: Overview) -> Mapping[str, tuple[StepSample, int]]:
    """Return, by node, sums over its steps so far, and its requests now."""
    from skerry_regions.speeds import StepSample

    return {
        node.id: (
            StepSample(
                steps=engine.steps,
                seconds=engine.busy_seconds,
                new_tokens=engine.prompt_tokens,
                attended=engine.attended_pairs,
                streams=engine.stream_steps,
                context=engine.context_steps,
            ),
            engine.running + engine.waiting,
        )
        for node in of.nodes
        if (engine := node.engine) is not None
    }
