"""Figures of an engine: how it stands, and what its steps have cost so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from skerry_core.blocks import BlockPool
from skerry_core.engine.scheduler import Scheduler
from skerry_core.engine.second_tier import SecondTier
from skerry_core.engine.sequence import Sequence
from skerry_core.engine.speculation import Speculator
from skerry_core.engine.step_plan import PlannedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """An engine at one moment. Counters only grow."""

    running: int  # sequences that hold blocks
    waiting: int  # sequences queued
    blocks: int  # of KV memory: used + cached + free
    blocks_used: int
    blocks_cached: int  # idle, with a prefix that can be matched
    blocks_free: int
    blocks_filed: int  # in the second tier, whether or not in memory as well
    steps: int  # counter; stands still while there is work: the engine hangs
    computed_tokens: int  # counter: prompt and output tokens that ran through the model, and stay
    output_tokens: int  # counter: tokens made
    cache_query_tokens: int  # counter: tokens that were looked for in the prefix cache
    cache_hit_tokens: int  # counter: tokens that did not run, thanks to the prefix cache
    restored_blocks: int  # counter: read from the second tier
    preemptions: int  # counter
    drafted_tokens: int  # counter: of those that ran, see `speculation`
    accepted_tokens: int  # counter: of those drafted, and made so
    busy_seconds: float  # counter: engine seconds
    prompt_tokens: int  # counter: prompt tokens computed; these four explain `busy_seconds`
    attended_pairs: float  # counter: (query, key) pairs of their causal attention
    stream_steps: int  # counter: sum over steps of the sequences that decoded
    context_steps: int  # counter: sum over steps of the tokens they looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What an engine has to do, and sums over all its steps from which its speed can be learned."""

    prefill_tokens: int  # prompt tokens still to compute, waiting or running
    prefill_pairs: float  # (query, key) pairs of their causal attention
    streams: int  # sequences that decode
    context_tokens: int  # tokens those look at in one step
    free_tokens: int  # KV room that no running sequence holds
    age: float  # seconds: what was requested since then is not in it
    steps: int
    seconds: float
    new_tokens: int  # prompt tokens computed
    attended: float  # pairs of those
    stream_steps: int  # sum over steps of the sequences that decoded
    context_steps: int  # sum over steps of the tokens they looked at


class Tally:
    """Counters over an engine's steps."""

    def __init__(self) -> None:
        self.steps = 0
        self.seconds = 0.0  # busy
        self.computed_tokens = 0
        self.new_tokens = 0  # see `Load` for these
        self.attended = 0.0
        self.stream_steps = 0
        self.context_steps = 0

    def add_step(self, rows: Iterable[PlannedRow], seconds: float) -> None:
        """Count a step that has run, with those of its rows whose sequences live."""
        self.steps += 1
        self.seconds += seconds
        for row in rows:
            self.computed_tokens += row.end - row.start
            if row.is_decode:
                self.stream_steps += 1
                self.context_steps += row.start + 1
            else:
                self.new_tokens += row.num_tokens
                self.attended += _attended(row.start, row.num_tokens)

    def statistics(
        self,
        pool: BlockPool,
        scheduler: Scheduler,
        *,
        filed: SecondTier | None,
        output_tokens: int,
        drafts: Speculator | None,
    ) -> Statistics:
        """Return how the engine stands, by its parts."""
        idle, cached = pool.num_idle, pool.num_cached
        return Statistics(
            running=scheduler.num_running,
            waiting=scheduler.num_waiting,
            blocks=pool.num_blocks,
            blocks_used=pool.num_blocks - idle,
            blocks_cached=cached,
            blocks_free=idle - cached,
            blocks_filed=0 if filed is None else len(filed.file),
            steps=self.steps,
            computed_tokens=self.computed_tokens,
            output_tokens=output_tokens,
            cache_query_tokens=scheduler.num_cache_query_tokens,
            cache_hit_tokens=scheduler.num_cache_hit_tokens,
            restored_blocks=0 if filed is None else filed.num_restored,
            preemptions=scheduler.num_preemptions,
            drafted_tokens=0 if drafts is None else drafts.num_drafted,
            accepted_tokens=0 if drafts is None else drafts.num_accepted,
            busy_seconds=self.seconds,
            prompt_tokens=self.new_tokens,
            attended_pairs=self.attended,
            stream_steps=self.stream_steps,
            context_steps=self.context_steps,
        )

    def load(self, sequences: Iterable[Sequence], *, free_tokens: int, age: float) -> Load:
        """Return what is left to do for these, and the sums so far."""
        decoding: list[Sequence] = []
        prefilling: list[Sequence] = []
        for sequence in sequences:
            (decoding if sequence.is_stream else prefilling).append(sequence)
        return Load(
            prefill_tokens=sum(s.remaining for s in prefilling),
            prefill_pairs=sum(_attended(s.num_computed, s.remaining) for s in prefilling),
            streams=len(decoding),
            context_tokens=sum(s.num_tokens for s in decoding),
            free_tokens=free_tokens,
            age=age,
            steps=self.steps,
            seconds=self.seconds,
            new_tokens=self.new_tokens,
            attended=self.attended,
            stream_steps=self.stream_steps,
            context_steps=self.context_steps,
        )


def _attended(start: int, num_tokens: int) -> float:
    """Return pairs (query, key) of causal attention of `num_tokens` tokens after `start`."""
    return num_tokens * (start + (num_tokens + 1) / 2)
