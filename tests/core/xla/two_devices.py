"""`python -m tests.core.xla.two_devices MODEL`: a model divided over two devices, and on one.

XLA makes two devices of a CPU where `XLA_FLAGS` says so, before JAX is imported.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.core.random_models import random_weights
from tests.core.runners.runner_suite import CACHE, MODELS, random_tokens, reference, teacher_forced

from skerry_core.config import ConfigError
from skerry_core.kernels.jax.weights import assemble, partitions
from skerry_core.runners.jax.jax_runner import JaxRunner, mesh_of


def main(path: Path) -> None:
    tokens, table = random_tokens(90), [2, 0]
    expected = reference(path).logits(tokens)
    one, two = (
        JaxRunner.open(
            path, cache_dir=CACHE, threads=1, num_blocks=3, max_samples=512, num_devices=count
        )
        for count in (1, 2)
    )
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

    mesh = mesh_of(2)
    even = replace(MODELS["mistral"], vocab_size=132)
    weights = assemble(even, random_weights(even), mesh)
    assert [shard.data.shape for shard in weights.head.addressable_shards] == [(66, 64)] * 2
    with pytest.raises(ConfigError, match=r"num_kv_heads \(1\) must be a multiple of the devices"):
        partitions(MODELS["qwen2"], mesh)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
