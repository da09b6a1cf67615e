"""A day of chats on three continents, cut into cells by session.

Sessions begin as a Poisson process whose rate follows each continent's day, belong to a tenant
(Zipf's law) whose system prompt all of its sessions share everywhere, and ask several times; each
prompt has all that was said before. A turn's lengths are those of a request of Azure's conversation
trace of 2023 (`bench/data`), half of its context as the user's words. Some turns come in on another
continent than the session's.

A cell has its share of the sessions, and the hours of one are made apart, each from a seed of its
own: a part of a day is what the whole day has there, but for sessions that are over an hour old.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from bench.routing.sim.traces import azure
from skerry_regions.routing.fast.compiled import Int64s
from skerry_regions.twin.workload import Workload, names_of

HOUR, DAY = 3600.0, 24  # seconds, hours
BLOCK = 256  # tokens
MOST_BLOCKS = 1 << 7  # of a prompt
TENANTS, LONGEST_SYSTEM = 400, 12  # of a tenant's system prompt, blocks
TURNS, THINK_SECONDS = 3.0, 60.0  # means
USERS_WORDS = 0.5  # share of the trace's contexts
ROAM = 0.05  # of turns
SESSION_BITS = 20  # of one cell, hour and continent


@dataclass(frozen=True)
class Continent:
    """One region, and its clients."""

    name: str
    city: str  # of IBM's matrix
    share: float  # of all requests
    noon: float  # UTC, hours
    node_hour: float  # US$


CONTINENTS = (
    Continent("iad", "Washington DC", 0.40, 18.0, 2.5),
    Continent("fra", "Frankfurt", 0.35, 12.0, 2.9),
    Continent("nrt", "Tokyo", 0.25, 4.0, 3.3),
)
SWING = 0.7  # of the rate, between noon and midnight


@dataclass(frozen=True)
class Load:
    """What comes to one cell."""

    rate: float  # requests per second of all continents, mean of the day
    seed: int

    def window(self, cell: int, begin: float, end: float) -> Workload:
        """The requests of a cell between two times of the day, seconds from midnight UTC; those
        before midnight are of the same day's end."""
        hours = range(math.floor(begin / HOUR) - 1, math.ceil(end / HOUR))
        parts = [
            self._hour(cell, hour, number) for hour in hours for number in range(len(CONTINENTS))
        ]
        at, prompts, outputs, regions, shared, sessions, tenants = (
            np.concatenate([part[column] for part in parts]) for column in range(7)
        )
        inside = (at >= begin) & (at < end)
        order = np.flatnonzero(inside)[np.argsort(at[inside], kind="stable")]
        blocks = np.minimum(prompts[order] // BLOCK, MOST_BLOCKS)
        firsts = (np.cumsum(blocks) - blocks).astype(np.int64)
        places = np.arange(int(blocks.sum())) - np.repeat(firsts, blocks)
        is_shared = places < np.repeat(shared[order], blocks)
        roots = np.where(is_shared, np.repeat(tenants[order], blocks),
                         np.repeat(sessions[order], blocks))  # fmt: skip
        return Workload(
            arrivals=at[order] - begin,
            prompts=prompts[order],
            outputs=outputs[order],
            regions=regions[order],
            firsts=firsts,
            blocks=blocks,
            names=names_of((roots * MOST_BLOCKS + places).astype(np.uint64)),
        )

    def _hour(self, cell: int, hour: int, number: int) -> tuple[Any, ...]:
        """Return the requests of sessions that begin in an hour on a continent: columns."""
        place, slot = CONTINENTS[number], (cell * 4 * DAY + hour + DAY) * len(CONTINENTS) + number
        rng = np.random.default_rng((self.seed, cell, hour + DAY, number))
        most = self.rate * place.share * (1 + SWING) / TURNS
        begins = rng.uniform(hour * HOUR, (hour + 1) * HOUR, rng.poisson(most * HOUR))
        day = np.cos(2 * math.pi * (begins / HOUR - place.noon) / DAY)
        begins = begins[rng.random(len(begins)) < (1 + SWING * day) / (1 + SWING)]
        turns = rng.geometric(1 / TURNS, len(begins))
        count, session = int(turns.sum()), np.repeat(np.arange(len(begins)), turns)
        firsts = np.repeat(np.cumsum(turns) - turns, turns)
        gaps = rng.exponential(THINK_SECONDS, count)
        gaps[np.arange(count) == firsts] = 0.0
        words, answers = turn_lengths()
        picked = rng.integers(len(words), size=count)
        said, outputs = words[picked], answers[picked]
        weights = 1 / np.arange(1, TENANTS + 1)
        tenant = rng.choice(TENANTS, len(begins), p=weights / weights.sum())
        system = 1 + (tenant * 7919) % LONGEST_SYSTEM
        own = _running(said, firsts) + _running(outputs, firsts) - outputs
        away = rng.random(count) < ROAM
        regions = np.where(away, rng.integers(len(CONTINENTS), size=count), number)
        return (
            begins[session] + _running(gaps, firsts),
            np.minimum(system[session] * BLOCK + own, MOST_BLOCKS * BLOCK),
            outputs,
            regions,
            system[session],
            (TENANTS + (slot << SESSION_BITS) + np.arange(len(begins)))[session],
            tenant[session],
        )


@cache
def turn_lengths() -> tuple[Int64s, Int64s]:
    """Tokens that a user says, and of the answer."""
    trace = azure("conv")
    words = [max(int(USERS_WORDS * each.prompt_tokens), 1) for each in trace]
    return np.array(words, np.int64), np.array([each.output_tokens for each in trace], np.int64)


def _running(values: Any, firsts: Int64s) -> Any:
    """Return sums from the first value of each session on."""
    sums = np.cumsum(values)
    return sums - (sums - values)[firsts]
