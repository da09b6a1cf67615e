"""The edge names KV blocks as the engine does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry_core.blocks import chain_digests, root_digest
from skerry_core.config import BLOCK_SIZE as CORE_BLOCK_SIZE
from skerry_core.names import BlockNames
from skerry_regions.digests import BLOCK_SIZE, full_block_digests

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
