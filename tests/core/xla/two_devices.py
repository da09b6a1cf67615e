"""`python -m tests.core.xla.two_devices MODEL`: a model divided over two devices, and on one.

XLA makes two devices of a CPU where `XLA_FLAGS` says so, before JAX is imported.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.core.open_runners import open_on_jax
from tests.core.ranks.group_suite import group_setup
from tests.core.runners.hand_batches import teacher_forced
from tests.core.runners.runner_suite import CACHE, random_tokens, reference

from skerry_core.config import ConfigError
from skerry_core.ranks import Parallel
from skerry_core.runners.jax.jax_group import JaxGroup
from skerry_core.runners.jax.jax_runner import JaxRunner


def main(path: Path) -> None:
    tokens, table = random_tokens(90), [2, 0]
    expected = reference(path).logits(tokens)
    one, two = (
        JaxGroup.from_setup(
            replace(
                group_setup(
                    path, Parallel(tensor=count), num_blocks=3, max_step_tokens=512, max_samples=512
                ),
                cache_dir=CACHE,
            )
        )
        for count in (1, 2)
    )
    assert type(two) is JaxRunner  # there are as many devices: no other process
    assert one.numeric_build != two.numeric_build
    assert [shard.data.shape[3] for shard in two._state.kv.addressable_shards] == [1, 1]
    for first, second in ((one, two), (two, one)):
        logits = teacher_forced(first, tokens[:70], (69, 1), table)
        np.testing.assert_allclose(logits, expected[:70], rtol=0, atol=2e-5)
        for block in table:
            second.admit_block(block, first.export_block(block))
            np.testing.assert_array_equal(second.export_block(block), first.export_block(block))
        logits = teacher_forced(second, tokens[70:], (20,), table, start=70)
        np.testing.assert_allclose(logits, expected[70:], rtol=0, atol=2e-5)

    heads = [shard.data.shape for shard in two._weights.head.addressable_shards]
    assert heads == [(66, 64)] * 2  # of 131 tokens, one of padding
    with pytest.raises(ConfigError, match="llama's 2 KV heads cannot be divided among 4 devices"):
        open_on_jax(path, cache_dir=CACHE, threads=1, num_blocks=1, num_devices=4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
