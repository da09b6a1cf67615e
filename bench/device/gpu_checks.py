"""Whether a runner on a GPU is right: graphs and streams run nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bench.device.gpu_batches import step
from skerry_core.batch import ForwardBatch
from skerry_core.config import BLOCK_SIZE
from skerry_core.runners.torch.torch_runner import TorchRunner

# Of the logits' spread, between two orders of rounding in bfloat16; that of unlike logits is 1.4.
MOST_DISTANCE = 0.1


@dataclass(frozen=True)
class Answers:
    """Logits of a prompt's last token, and of the next one, f32[V]."""

    prefill: NDArray[np.float32]
    decode: NDArray[np.float32]

    def distance(self, other: Answers) -> float:
        """Root mean square of the difference, as a share of the other's spread; the larger one."""
        pairs = (self.prefill, other.prefill), (self.decode, other.decode)
        return max(float(np.std(mine - theirs) / np.std(theirs)) for mine, theirs in pairs)


def answers(runner: TorchRunner, context: int) -> Answers:
    return Answers(
        _logits(runner, step(1, context, context)), _logits(runner, step(1, 1, context + 1))
    )


def check_moved(runner: TorchRunner, context: int, decode: NDArray[np.float32]) -> None:
    """Move the KV of that prompt to other blocks, through the host, and go on from there.

    Raises RuntimeError when the logits are not the same, bit for bit.
    """
    batch = step(1, 1, context + 1)
    count = -(-(context + 1) // BLOCK_SIZE)
    runner.admit_blocks(range(count, 2 * count), *runner.export_blocks(range(count)))
    moved = _logits(runner, replace(batch, block_tables=batch.block_tables + count))
    if not np.array_equal(moved, decode):
        raise RuntimeError(f"after KV was moved, {np.sum(moved != decode)} logits are others")


def _logits(runner: TorchRunner, batch: ForwardBatch) -> NDArray[np.float32]:
    """Raises RuntimeError when the token that was chosen has not the largest of them."""
    (token,) = runner.execute(batch).token_ids.tolist()
    logits = runner.last_logits()[0].copy()
    if logits[token] != logits.max():
        raise RuntimeError(f"token {token} of logit {logits[token]} was chosen, not the largest")
    return logits
