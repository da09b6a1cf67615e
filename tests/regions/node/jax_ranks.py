"""`python -m tests.regions.node.jax_ranks MODEL`: a model over two processes that a node starts,
and in one.

In a process of its own: JAX's distributed runtime comes before anything else on JAX.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from tests.core.open_runners import open_on_torch
from tests.core.ranks.group_suite import group_setup
from tests.core.runners.hand_batches import Piece, batch_of, teacher_forced
from tests.core.runners.runner_suite import (
    CACHE,
    Sizes,
    answers_of,
    check_greedy,
    engine_over,
    random_tokens,
    reference,
    requests_with_shared_prefix,
)
from tests.regions.node.test_torch_ranks import SOON, children

from skerry_core.batch import ForwardBatch
from skerry_core.ranks import DividedRunner, Parallel, Part, RankLost
from skerry_core.runners.jax.jax_group import JaxGroup
from skerry_regions.node.ranks.children import LocalRanks

SIZES: Sizes = {"num_blocks": 12, "max_step_tokens": 128, "max_samples": 128}


def main(path: Path) -> None:
    setup = group_setup(path, Parallel(tensor=2), **SIZES)
    group = JaxGroup.from_setup(replace(setup, ranks=LocalRanks("jax"), cache_dir=CACHE))
    assert isinstance(group, JaxGroup)
    assert isinstance(group, DividedRunner)
    tokens, table = random_tokens(90), [2, 0]
    expected = reference(path).logits(tokens)
    logits = teacher_forced(group, tokens[:70], (69, 1), table)
    np.testing.assert_allclose(logits, expected[:70], rtol=0, atol=2e-5)
    own = [shard.data.shape for shard in group._weights.layers.qkv.addressable_shards]
    assert own == [(2, 64, 1, 5, 16)]  # of two KV heads, one

    # KV crosses both ways between the split model and a whole one.
    whole = open_on_torch(path, threads=1, device="cpu", **SIZES)
    for block in table:
        whole.admit_block(block, group.export_block(block))
    logits = teacher_forced(whole, tokens[70:], (20,), table, start=70)
    np.testing.assert_allclose(logits, expected[70:], rtol=0, atol=2e-5)
    for block, there in zip(table, (5, 7), strict=True):
        group.admit_block(there, whole.export_block(block))
    logits = teacher_forced(group, tokens[70:], (20,), [5, 7], start=70)
    np.testing.assert_allclose(logits, expected[70:], rtol=0, atol=2e-5)
    with pytest.raises(ValueError, match="there is no block 12"):
        group.export_block(12)  # before another rank waits for it

    requests = requests_with_shared_prefix(count=3, max_tokens=4)
    answers = answers_of(engine_over(group, max_step_tokens=128), requests)
    for request in requests:
        check_greedy(reference(path), request, answers[request.id], 2e-5)

    check_lost(group, batch_of(Piece(tokens, 0, [2, 0])))
    group.close()


def check_lost(group: JaxGroup, step: ForwardBatch) -> None:
    """Kill the other process once it has been sent a step, before it computes its part."""
    lost = SimpleQueue[RankLost]()
    group.ranks.when_lost(lost.put)
    (pid,), (channel,) = children(), group._others.channels
    os.kill(pid, signal.SIGSTOP)
    send = channel.send

    def send_and_kill(*parts: Part) -> None:
        send(*parts)
        os.kill(pid, signal.SIGKILL)

    channel.send = send_and_kill  # type: ignore[method-assign]
    begun = time.monotonic()
    with pytest.raises((RankLost, RuntimeError)):
        group.execute(step)
    assert "rank 1 is lost" in str(lost.get(timeout=SOON))
    with pytest.raises(RankLost, match="rank 1 is lost"):
        group.execute(step)
    assert time.monotonic() - begun < SOON


if __name__ == "__main__":
    main(Path(sys.argv[1]))
