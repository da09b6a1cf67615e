"""Ranks of Torch in processes of their own, as a node starts them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import pytest
from tests.core.ranks.group_suite import group_setup
from tests.core.runners.hand_batches import Piece, batch_of, teacher_forced
from tests.core.runners.runner_suite import random_tokens, reference, write_model

from skerry_core.ranks import Parallel, RankLost
from skerry_core.runners.torch.torch_group import TorchGroup
from skerry_regions.node.ranks.children import LocalRanks

SOON = 10.0  # seconds; a dead rank is seen in some milliseconds, a hung one in minutes


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models"), "llama")


@pytest.fixture
def group(weights: Path, request: pytest.FixtureRequest) -> Iterator[TorchGroup]:
    setup = group_setup(weights, request.param, num_blocks=4, max_step_tokens=512, max_samples=512)
    group = TorchGroup.from_setup(replace(setup, ranks=LocalRanks("torch")))
    yield group
    group.close()


def children() -> list[int]:
    """Processes that this one has started and that have not ended."""
    found = [int(pid) for task in Path("/proc/self/task").iterdir()
             for pid in (task / "children").read_text().split()]  # fmt: skip
    return [pid for pid in found if "ranks.child" in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.parametrize("group", [Parallel(tensor=2)], indirect=True, ids=str)
def test_a_rank_that_is_killed_fails_the_next_step_at_once(
    group: TorchGroup, weights: Path
) -> None:
    tokens, lost = random_tokens(100), SimpleQueue[RankLost]()
    group.ranks.when_lost(lost.put)
    logits = teacher_forced(group, tokens, (80, 20), table=[3, 1])
    np.testing.assert_allclose(logits, reference(weights).logits(tokens), rtol=0, atol=2e-5)
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises((RankLost, RuntimeError)):
        group.execute(batch_of(Piece(tokens, 0, [3, 1])))
    assert "rank 1 is lost" in str(lost.get(timeout=SOON))
    with pytest.raises(RankLost, match="rank 1 is lost"):
        group.execute(batch_of(Piece(tokens, 0, [3, 1])))
    assert time.monotonic() - begun < SOON
