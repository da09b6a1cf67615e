"""What a node reports to its edges several times a second: load, measured speed, cached prefixes.

An engine may be looked into only on its own thread, so what a report is made of crosses over after
a step. Between steps of a busy engine the last word stands, and grows old; an idle one has no load.

A block is reported as being in memory, else as being in the file tier, else as gone. The two change
on different threads; what is reported follows from their changes alone, never from a look at
either.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from skerry_core.blocks import CacheChanges
from skerry_core.config import BLOCK_SIZE
from skerry_core.engine.engine import Engine
from skerry_core.engine.figures import Load, Statistics
from skerry_regions.prefix_news import PrefixPublisher
from skerry_regions.speeds import StepSample
from skerry_regions.view import NodeLoad
from skerry_regions.wire.reports import MAX_BANDWIDTH, MAX_FETCHED, EngineWork, Fetched, Report

LOOK_SECONDS = 0.05  # between looks at every sequence of an engine


@dataclass(frozen=True, slots=True)
class StepNews:
    """What crosses from the engine's thread after a step."""

    changes: CacheChanges
    load: Load | None  # only now and then: looking at every sequence takes time
    as_of: float  # of the load, on the reporter's clock


def work_of(statistics: Statistics) -> EngineWork:
    """Return the figures of an engine that people look at."""
    return EngineWork(
        busy_seconds=statistics.busy_seconds,
        looked_up_tokens=statistics.cache_query_tokens,
        hit_tokens=statistics.cache_hit_tokens,
        blocks=statistics.blocks,
        blocks_used=statistics.blocks_used,
    )


class Reporter:
    """Reports of one engine, made before its first step. On the event loop, except `after_step`."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        model: str,
        engine: Engine,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model = model
        self._engine = engine
        self._clock = clock
        self._publisher = PrefixPublisher(node, incarnation)
        self._load = self._told = engine.load()  # as last heard, as of the last report
        self._looked = -math.inf
        self._queue = NodeLoad()
        self._as_of = clock()  # of the queue
        self._fetched: deque[Fetched] = deque(maxlen=MAX_FETCHED)  # since the last report
        self._tier = engine.second_tier
        filed = [] if self._tier is None else self._tier.file.digests()
        self._filed = set(filed)  # as last heard
        self._publisher.sealed(filed, "file")

    def after_step(self) -> StepNews:
        """Return the news of a step. On the engine's thread."""
        now, changes = self._clock(), self._engine.pool.drain_changes()
        if now - self._looked < LOOK_SECONDS:
            return StepNews(changes, None, now)
        self._looked = now
        load = self._engine.load()
        return StepNews(changes, load, now - load.age)

    def take(self, news: StepNews) -> None:
        """Take in what a step brought."""
        if news.changes.sealed:
            self._publisher.sealed(news.changes.sealed)
        for digest in news.changes.evicted:
            if digest in self._filed:
                self._publisher.sealed([digest], "file")
            else:
                self._publisher.evicted([digest])
        if (load := news.load) is None:
            return
        self._load, self._as_of = load, news.as_of
        self._queue = NodeLoad(
            prefill_tokens=load.prefill_tokens,
            prefill_pairs=load.prefill_pairs,
            streams=load.streams,
            context_tokens=load.context_tokens,
            free_tokens=load.free_tokens,
        )

    def queue_seconds(self) -> float:
        """Return how long the engine needs for the prompts that wait or run, at the pace of its
        life."""
        self._notice_idleness()
        computed = self._load.new_tokens + self._load.stream_steps
        pace = self._load.seconds / computed if computed else 0.0
        return self._queue.prefill_tokens * pace

    def fetched(self, sample: Fetched) -> None:
        """Take in how long KV took from another node."""
        self._fetched.append(sample)

    def report(self) -> Report:
        """Return what is new since the last report."""
        self._take_file_changes()
        fetched = list(self._fetched)
        self._fetched.clear()
        statistics = self._notice_idleness()
        return Report(
            model=self._model,
            load=self._queue,
            load_age=self._clock() - self._as_of,
            work=work_of(statistics),
            sample=self._sample(),
            fetched=fetched,
            file_bandwidth=self._file_bandwidth(),
            prefixes=self._publisher.delta(),
        )

    def snapshot(self) -> Report:
        """Return everything, for an edge that knows nothing yet."""
        self._notice_idleness()
        return Report(
            model=self._model,
            load=self._queue,
            load_age=self._clock() - self._as_of,
            file_bandwidth=self._file_bandwidth(),
            prefixes=self._publisher.snapshot(),
        )

    def _take_file_changes(self) -> None:
        if self._tier is None:
            return
        changes = self._tier.file.drain_changes()
        self._filed.update(changes.sealed)
        self._filed.difference_update(changes.evicted)
        told = self._publisher.tier
        self._publisher.sealed([d for d in changes.sealed if told(d) != "memory"], "file")
        self._publisher.evicted([d for d in changes.evicted if told(d) == "file"])

    def _file_bandwidth(self) -> float:
        return 0.0 if self._tier is None else min(self._tier.bandwidth, MAX_BANDWIDTH)

    def _notice_idleness(self) -> Statistics:
        """Report idleness: an engine without work makes no step after which it could. Returns its
        figures of now."""
        statistics = self._engine.statistics()
        if not (statistics.running or statistics.waiting):
            free = (statistics.blocks_free + statistics.blocks_cached) * BLOCK_SIZE
            self._queue, self._as_of = NodeLoad(free_tokens=free), self._clock()
        return statistics

    def _sample(self) -> StepSample | None:
        """Return sums over the steps since the last report that had any."""
        now, before = self._load, self._told
        if now.steps == before.steps:
            return None
        self._told = now
        return StepSample(
            steps=now.steps - before.steps,
            seconds=now.seconds - before.seconds,
            new_tokens=now.new_tokens - before.new_tokens,
            attended=now.attended - before.attended,
            streams=now.stream_steps - before.stream_steps,
            context=now.context_steps - before.context_steps,
        )
