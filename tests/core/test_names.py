"""Names of blocks: the tenant's own, except where a prompt begins as the operator's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.toy_oracle import VOCAB, expected, request, run

from skerry_core.batch import Int32
from skerry_core.blocks import chain_digests, root_digest
from skerry_core.config import BLOCK_SIZE, EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.names import SHARED_KEY, BlockNames
from skerry_core.runners.toy import ToyRunner

MODEL = b"model"
OPERATORS = np.arange(3 * BLOCK_SIZE + 20, dtype=np.int32)


def names() -> BlockNames:
    made = BlockNames(MODEL)
    assert made.share(OPERATORS) == 3
    return made


def plain(tokens: Int32, key: bytes) -> list[bytes]:
    return chain_digests(root_digest(MODEL, key), tokens, key)


def test_without_shared_prompts_all_is_the_tenants() -> None:
    assert BlockNames(MODEL).of(OPERATORS, b"a", private=False) == plain(OPERATORS, b"a")


@pytest.mark.parametrize("common", [0, 1, 2, 3])
def test_blocks_are_shared_as_far_as_the_prompt_is_the_operators(common: int) -> None:
    tokens = np.concatenate([OPERATORS[: common * BLOCK_SIZE], OPERATORS[::-1]])
    one, two = (names().of(tokens, key, private=False) for key in (b"one", b"two"))
    assert one[:common] == two[:common] == plain(tokens, SHARED_KEY)[:common]
    assert not set(one[common:]) & set(two[common:])
    parent = one[common - 1] if common else root_digest(MODEL, b"one")
    assert one[common:] == chain_digests(parent, tokens[common * BLOCK_SIZE :], b"one")


def test_private_blocks_are_never_shared() -> None:
    assert names().of(OPERATORS, b"one", private=True) == plain(OPERATORS, b"one")


@given(st.integers(0, 5), st.integers(0, 130), st.lists(st.integers(0, 5), max_size=6))
def test_names_do_not_depend_on_how_they_are_asked_for(
    common: int, rest: int, parts: list[int]
) -> None:
    tokens = np.concatenate(
        [OPERATORS[: common * 40], np.arange(rest, dtype=np.int32)[::-1]]
    ).astype(np.int32)
    whole = names().of(tokens, b"key", private=False)
    grown: list[bytes] = []
    for part in [*parts, 10]:
        begin = len(grown) * BLOCK_SIZE
        names().extend(grown, tokens[begin : begin + part * BLOCK_SIZE], b"key", private=False)
    assert grown == whole
    prompt = names().of_prompt(tokens, b"key", private=False)
    assert prompt[: len(whole)] == whole
    assert len(prompt) == -(-len(tokens) // BLOCK_SIZE)


def test_every_tenant_finds_the_operators_prompt_and_nothing_else() -> None:
    runner = ToyRunner(num_blocks=64, vocab_size=VOCAB)
    engine = Engine(runner, EngineConfig(), model_key=MODEL)
    system = request("warm", 150, max_tokens=1)
    assert engine.share(system.prompt_ids) == 2
    engine.add(system.sequence())
    run(engine)
    for tenant in (b"one", b"two"):
        more = request(f"{tenant!r}", prompt_ids=(*system.prompt_ids, *range(100)))
        asked = request(more.id, prompt_ids=more.prompt_ids, cache_key=tenant, max_tokens=20)
        engine.add(asked.sequence())
        answer = run(engine)[asked.id]
        assert answer == expected(asked)
        assert answer.usage is not None
        assert answer.usage.cached_tokens == 2 * BLOCK_SIZE
