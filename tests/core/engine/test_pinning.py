"""Prompts that stay cached: what an engine reads and writes, against an endless cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pytest
from bench.subjects.requests import Request, SamplingParams
from tests.core.kv.sane_pools import check_pool

from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.request import EngineUsage, PinUsage
from skerry_core.runners.toy import ToyRunner

VOCAB = 257
AGENT, OTHERS = b"agent", b"others"


@dataclass
class EndlessCache:
    """Every beginning that was ever computed, by its tokens; nothing is forgotten."""

    known: set[tuple[int, ...]] = field(default_factory=set)

    def read(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt it saves: whole blocks, and never the last token."""
        ends = range(BLOCK_SIZE, len(prompt), BLOCK_SIZE)
        return max((end for end in ends if tuple(prompt[:end]) in self.known), default=0)

    def learn(self, tokens: Sequence[int]) -> None:
        ends = range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE)
        self.known.update(tuple(tokens[:end]) for end in ends)


class Client:
    """Runs one prompt after another; `now` is the engine's clock."""

    def __init__(self, num_blocks: int, **config: float) -> None:
        self.now = 0.0
        self.engine = Engine(
            ToyRunner(num_blocks=num_blocks, vocab_size=VOCAB),
            EngineConfig(**config),  # type: ignore[arg-type]
            model_key=b"toy",
            clock=lambda: self.now,
        )
        self._number = 0

    def run(
        self,
        prompt: Sequence[int],
        pins: tuple[tuple[int, float], ...] = (),
        key: bytes = AGENT,
        num_output: int = 5,
    ) -> tuple[list[int], EngineUsage]:
        self._number += 1
        request = Request(
            id=str(self._number), prompt_ids=tuple(prompt), cache_key=key, pins=pins,
            sampling=SamplingParams(max_tokens=num_output),
        )  # fmt: skip
        self.engine.add(request.sequence())
        said: list[int] = []
        while True:
            for output in self.engine.step():
                said += output.token_ids
                if output.usage is not None:
                    check_pool(self.engine.pool)
                    return said, output.usage

    def press(self, random: Random, num_blocks: int) -> None:
        """Have others fill so many blocks."""
        for _ in range(num_blocks // 4):
            self.run(words(random, 4 * BLOCK_SIZE - 4), key=OTHERS)


def words(random: Random, number: int) -> list[int]:
    return [random.randrange(VOCAB) for _ in range(number)]


@pytest.mark.parametrize("pressure", [0, 2])
def test_reads_and_writes_of_an_agents_turns_are_those_of_an_endless_cache(pressure: int) -> None:
    """System prompt for an hour, all for five minutes; between turns others use the pool twice."""
    random, client, endless = Random(pressure), Client(96), EndlessCache()
    conversation = system = words(random, 7 * BLOCK_SIZE + 20)
    for _ in range(12):
        conversation = [*conversation, *words(random, random.randrange(20, 110))]
        conversation += [1] * (
            len(conversation) % BLOCK_SIZE == 0
        )  # whose last block would run again
        pins = ((len(system), 3600.0), (len(conversation), 300.0))
        read = endless.read(conversation)
        written = [
            sum(1 for end in range(first, last + 1, BLOCK_SIZE) if end > read)
            for first, last in (
                (BLOCK_SIZE, len(system)),
                (8 * BLOCK_SIZE, len(conversation)),
            )
        ]
        said, usage = client.run(conversation, pins)
        assert usage.cached_tokens == read
        assert usage.pinned == PinUsage((written[0] * BLOCK_SIZE, written[1] * BLOCK_SIZE), 0)
        # An answer is cached as well, but for its last token, and only a prompt stays.
        endless.learn(conversation if pressure else [*conversation, *said][:-1])
        conversation = [*conversation, *said]
        client.press(random, pressure * client.engine.pool.num_blocks)
        client.now += 200.0
    # After five minutes the conversation is as any other, and the system prompt is still there.
    client.now += 101.0
    client.press(random, 2 * client.engine.pool.num_blocks)
    _, usage = client.run([*conversation, 1])
    assert usage.cached_tokens == 7 * BLOCK_SIZE
    assert usage.pinned is None


def test_without_pins_pressure_empties_the_cache() -> None:
    random, client = Random(1), Client(96)
    prompt = words(random, 500)
    client.run(prompt)
    client.press(random, 192)
    _, usage = client.run(prompt)
    assert (usage.cached_tokens, usage.pinned) == (0, None)


def test_beyond_its_share_a_tenants_oldest_prompt_lapses_and_usage_says_so() -> None:
    random, client = Random(2), Client(96)
    first, second = (words(random, 10 * BLOCK_SIZE + 9) for _ in range(2))
    large = words(random, 40 * BLOCK_SIZE + 9)

    def kept(prompt: list[int]) -> tuple[int, PinUsage | None]:
        _, usage = client.run(prompt, ((len(prompt), 300.0),), num_output=1)
        return usage.cached_tokens // BLOCK_SIZE, usage.pinned

    def blocks(written: int, lapsed: int) -> PinUsage:
        return PinUsage((written * BLOCK_SIZE,), lapsed * BLOCK_SIZE)

    assert kept(first) == (0, blocks(10, 0))
    assert kept(second) == (0, blocks(10, 0))
    assert kept(first) == (10, blocks(0, 0))  # the one that was used longest ago is the second now
    third = words(random, 8 * BLOCK_SIZE + 9)
    assert kept(third) == (0, blocks(8, 4))
    client.press(random, 192)
    assert kept(second) == (6, blocks(4, 4))  # its end had lapsed; now so does the first's
    client.press(random, 192)
    assert kept(first) == (6, blocks(4, 4))
    assert kept(large) == (0, blocks(24, 24))  # a quarter of 96
    client.press(random, 192)
    assert kept(large) == (24, blocks(0, 0))
    assert kept(first) == (0, blocks(10, 10))


def test_nobodys_prompts_lapse_for_anothers() -> None:
    random, client = Random(3), Client(96)
    prompts = {key: words(random, 20 * BLOCK_SIZE + 9) for key in (b"a", b"b", b"c", b"d")}
    written = {
        key: client.run(prompt, ((len(prompt), 60.0),), key)[1].pinned
        for key, prompt in prompts.items()
    }
    most = {b"a": 20, b"b": 20, b"c": 20, b"d": 12}  # three quarters of 96 in all
    assert written == {key: PinUsage((n * BLOCK_SIZE,), 0) for key, n in most.items()}
    client.press(random, 192)
    for key, prompt in prompts.items():
        assert client.run(prompt, key=key)[1].cached_tokens == most[key] * BLOCK_SIZE


@pytest.mark.parametrize(("share", "blocks"), [(0.0, 0), (0.1, 9), (0.5, 20)])
def test_the_share_is_the_operators(share: float, blocks: int) -> None:
    random, client = Random(4), Client(96, pin_share=share)
    prompt = words(random, 20 * BLOCK_SIZE + 9)
    _, usage = client.run(prompt, ((len(prompt), 60.0),))
    assert usage.pinned == PinUsage((blocks * BLOCK_SIZE,), 0)
