"""The edge names KV blocks as the engine does."""

from __future__ import annotations

from hashlib import blake2b
from struct import pack

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_core.blocks import chain_digests, root_digest
from skerry_core.config import BLOCK_SIZE as CORE_BLOCK_SIZE
from skerry_core.names import BlockNames
from skerry_regions.digests import BLOCK_SIZE, chain_depths, full_block_digests, prefix_chain

TOKEN_IDS = st.lists(st.integers(0, 2**31 - 1), max_size=300)


@given(
    prompt=TOKEN_IDS,
    output=TOKEN_IDS,
    model_key=st.binary(max_size=64),
    cache_key=st.binary(max_size=64),
)
def test_edge_and_engine_agree(
    prompt: list[int], output: list[int], model_key: bytes, cache_key: bytes
) -> None:
    tokens = np.array(prompt + output, np.int32)
    root = root_digest(model_key, cache_key)
    assert full_block_digests(model_key, cache_key, prompt, output) == tuple(
        chain_digests(root, tokens, cache_key)
    )


def test_names_are_what_they_always_were() -> None:
    """Golden values: nodes of different versions in one region must agree, too."""
    assert BLOCK_SIZE == CORE_BLOCK_SIZE == 64
    digests = full_block_digests(b"model", b"tenant", range(130))
    assert [digest.hex() for digest in digests] == [
        "f75ab88cd1fe03cf39408728071f3b19",
        "15bf33b642f0f5ecdd9594ffa44a826e",
    ]
    assert full_block_digests(b"model", b"tenant", range(63)) == ()


@pytest.mark.parametrize("wrong", [-1, 1 << 32])
def test_ids_out_of_range_are_refused(wrong: int) -> None:
    with pytest.raises(OverflowError):
        full_block_digests(b"", b"", [wrong])


@pytest.mark.parametrize("common", [0, 1, 2, 3])
def test_operators_prompts_are_named_as_nodes_name_them(common: int) -> None:
    operators = np.arange(3 * BLOCK_SIZE + 9, dtype=np.int32)
    names = BlockNames(b"model")
    names.share(operators)
    held = set(names.of(operators, b"", private=False))
    prompt = np.concatenate([operators[: common * BLOCK_SIZE], operators[::-1]])
    told = full_block_digests(b"model", b"tenant", prompt.tolist(), is_shared=held.__contains__)
    assert list(told) == names.of(prompt, b"tenant", private=False)
    assert len(set(told) & held) == common


def test_a_chain_names_prefixes_of_set_lengths() -> None:
    """By the digests' own definition, and by what was written once: journals are read for long."""
    depths = [*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), 72]
    assert list(chain_depths(79)) == depths
    assert len(list(chain_depths(1 << 30))) == 128  # 16 million tokens
    ids = [7 * at % 50_000 for at in range(79 * BLOCK_SIZE + 5)]
    parent, start, names = b"model", 0, []
    for depth in depths:
        tokens = ids[start * BLOCK_SIZE : depth * BLOCK_SIZE]
        whole = pack(f"<{len(tokens)}I", *tokens) + parent
        parent = blake2b(whole, digest_size=16, key=b"tenant", person=b"skerry use chain").digest()
        names.append(parent[:8])
        start = depth
    chain = prefix_chain("model", b"tenant", ids)
    assert chain == b"".join(names)
    assert prefix_chain("model", b"tenant", range(130)).hex() == "a42f767928e4b354aab7104beebb1d1c"
    assert prefix_chain("model", b"tenant", ids[:63]) == b""


@given(shared=st.integers(0, 6000), seed=st.integers(0, 2**31 - 1))
def test_chains_share_what_prompts_share_to_within_a_ninth(shared: int, seed: int) -> None:
    one = np.random.default_rng(seed).integers(0, 1 << 31, 6100)
    other = np.concatenate([one[:shared], one[shared:] ^ 1])
    chains = [prefix_chain("m", b"k", ids.tolist()) for ids in (one, other)]
    names = [[chain[at : at + 8] for at in range(0, len(chain), 8)] for chain in chains]
    equal = [a == b for a, b in zip(*names, strict=True)]
    count = sum(equal)
    assert equal == [True] * count + [False] * (len(equal) - count)
    known, blocks = [0, *chain_depths(95)][count], shared // BLOCK_SIZE
    assert known <= blocks <= known * 9 / 8


def test_chains_have_keys() -> None:
    ids, keys = range(200), (b"one", b"other")
    first, second = (prefix_chain("m", key, ids) for key in keys)
    assert len(first) == len(second) == 24
    assert not {first[at : at + 8] for at in (0, 8, 16)} & {
        second[at : at + 8] for at in (0, 8, 16)
    }
    assert prefix_chain("n", b"one", ids)[:8] != first[:8]
    with pytest.raises(ValueError, match="guesses"):
        prefix_chain("m", b"", ids)
