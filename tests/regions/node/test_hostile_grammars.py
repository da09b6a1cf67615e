"""Grammars that were made to hurt: each is served or refused, in bounded time and memory."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.core.byte_grammars import END, VOCAB, write_byte_tokenizer

from skerry.errors import InvalidInput
from skerry_core.grammar.matcher import GrammarError, Matcher
from skerry_regions.node.grammar.grammars import Grammars
from skerry_regions.node.grammar.trial import GrammarVocabulary
from skerry_regions.wire.protocol import GrammarSpec

STEP_SECONDS = 0.05  # of processor time, for the mask and the choice of one token
GROWTH = 512 << 20  # bytes that this process may grow by
STATUS = Path("/proc/self/statm")

Maker = Callable[[Random], GrammarSpec]


def schema(rng: Random, depth: int = 0) -> Any:
    """A schema of any shape: large, deep, contradictory, of wrong types, with unknown keywords."""
    kinds = ["object", "array", "string", "number", "integer", "boolean", "null", "any", "wrong"]
    size = rng.choice([1, 3, 10, 1_000, 100_000, 10**9])
    match rng.choice(kinds if depth < 6 else kinds[2:]):
        case "object":
            names = [f"p{i}" for i in range(rng.randint(0, 12))]
            return {
                "type": "object",
                "properties": {name: schema(rng, depth + 1) for name in names},
                "required": rng.sample(names, len(names) // 2),
                "additionalProperties": rng.choice([True, False, schema(rng, depth + 1)]),
                "minProperties": rng.choice([0, 1, size]),
            }
        case "array":
            return {"type": "array", "items": schema(rng, depth + 1), "minItems": size,
                    "maxItems": size + rng.randint(-1, 5)}  # fmt: skip
        case "string":
            return {
                "type": "string",
                "pattern": expression(rng),
                "minLength": rng.choice([0, size]),
            }
        case "number" | "integer" as kind:
            return {"type": kind, "multipleOf": rng.choice([1, 7, 99_991, 0.001, size]),
                    "minimum": -size, "maximum": rng.choice([size, 10**18])}  # fmt: skip
        case "any":
            branches = [schema(rng, depth + 1) for _ in range(rng.randint(1, 6))]
            keyword = rng.choice(["anyOf", "allOf", "oneOf"])
            return {keyword: branches, "$ref": rng.choice(["#", "#/anyOf/0", "#/$defs/x"])}
        case "wrong":
            return {rng.choice(["type", "enum", "required", "$ref", "not", "if"]): rng.choice(
                [None, 3, "x", [], {}, [[]]])}  # fmt: skip
        case kind:
            return {"type": kind}


def expression(rng: Random, depth: int = 0) -> str:
    """A regular expression with nested counts, classes, intersections and broken pieces."""
    if depth > 4:
        return rng.choice(["a", ".", r"\d", r"\p{L}", "[^x]", "(", "[", r"\b", "(?=a)", ""])
    inner = expression(rng, depth + 1)
    count = rng.choice([2, 30, 1000, 100_000])
    return rng.choice(
        [f"({inner}){{1,{count}}}", f"({inner}|{expression(rng, depth + 1)})", f"(.*{inner}){{20}}",
         f"({inner})*({inner})*", f"{inner}.{{{count}}}", inner]
    )  # fmt: skip


def ebnf(rng: Random) -> GrammarSpec:
    """A grammar that is ambiguous, recursive on either side, or a product of complements."""
    count = rng.choice([2, 50, 5000])
    terms = " & ".join(f"/(.*{c}.*){{{count % 60}}}/" for c in "abcdefgh"[: rng.randint(1, 8)])
    source = rng.choice(
        [f'start: {"a " * 40}\na: "x" | a a | ""', f"start: a{{1,{count}}}\na: b b\nb: /x*/ | b b",
         f"start: T\nT: {terms}", "start: start start | start", 'start: "x" | "(" start ")" start',
         f"start: T\nT: ~/(.*a.{{{count % 60}}}b)/", 'root ::= root root | "a"*', "start: " * count]
    )  # fmt: skip
    return GrammarSpec(kind="ebnf", source=source)


MAKERS: list[Maker] = [
    lambda rng: GrammarSpec(kind="json_schema", source=json.dumps(schema(rng))),
    lambda rng: GrammarSpec(kind="regex", source=expression(rng)),
    ebnf,
]


def resident() -> int:
    return int(STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if STATUS.exists() else 0


def slowest_step(matcher: Matcher, seed: int) -> float:
    """Seconds of processor time of the slowest step along a random output."""
    rng = Random(seed)
    slowest, started = 0.0, time.thread_time()
    for _ in range(20):
        if matcher.is_finished:
            break
        started = time.thread_time()
        try:
            matcher.fill()
            matcher.choose(rng.choice(allowed(matcher)), left=rng.randint(0, 100))
            slowest = max(slowest, time.thread_time() - started)
        except GrammarError:
            break
    return max(slowest, time.thread_time() - started)


def allowed(matcher: Matcher) -> list[int]:
    assert matcher.mask is not None
    words = matcher.mask.tolist()
    return [i for i in range(VOCAB) if words[i >> 5] >> (i & 31) & 1]


async def attack(vocabulary: GrammarVocabulary, number: int, seed: int) -> tuple[int, int]:
    """Ask for that many grammars; how many were served and refused."""
    grammars, rng = Grammars(vocabulary), Random(seed)
    before, outcomes = resident(), [0, 0]
    for index in range(number):
        grammar = rng.choice(MAKERS)(rng)
        try:
            matcher = await grammars.matcher(grammar, cache_key=b"%d" % index, output_ids=())
        except InvalidInput:
            outcomes[1] += 1
            continue
        outcomes[0] += 1
        walk = rng.getrandbits(32)
        if slowest_step(matcher, walk) >= STEP_SECONDS:  # the machine may have paused: once more
            matcher = await grammars.matcher(grammar, cache_key=b"%d" % index, output_ids=())
            assert slowest_step(matcher, walk) < STEP_SECONDS, (index, grammar)
    assert resident() - before < GROWTH
    await grammars.close()
    return outcomes[0], outcomes[1]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> GrammarVocabulary:
    file = write_byte_tokenizer(tmp_path_factory.mktemp("vocabulary") / "tokenizer.json")
    return GrammarVocabulary(file, VOCAB, (END,))


def test_some(vocabulary: GrammarVocabulary) -> None:
    served, refused = asyncio.run(attack(vocabulary, 60, seed=1))
    assert served > 5
    assert refused > 5


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_ten_thousand(vocabulary: GrammarVocabulary) -> None:
    served, refused = asyncio.run(attack(vocabulary, 10_000, seed=2))
    assert served + refused == 10_000
