"""Runners over Triton's kernels, and contexts that come to them from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.core.open_runners import open_on_torch
from tests.core.paged_kv import DEVICE
from tests.core.runners.hand_batches import Piece, batch_of, teacher_forced

from skerry_core.batch import Float32
from skerry_core.runners.torch.torch_runner import TorchRunner

NUM_BLOCKS, LENGTH = 12, 140
ATOL = 2e-4 if DEVICE.type == "cuda" else 3e-5
"""Of logits of order 1: a device's own exponentials and quotients are a few roundings off."""


def open_runner(path: Path, **options: Any) -> TorchRunner:
    """Open one in float32, also where a GPU's own is bfloat16."""
    sizes: dict[str, Any] = {"num_blocks": NUM_BLOCKS, "max_samples": 8}
    return open_on_torch(
        path, threads=1, kernels="triton", device=str(DEVICE), dtype=torch.float32,
        **(sizes | options),
    )  # fmt: skip


def hand_over(path: Path, runner: TorchRunner, tokens: list[int], table: list[int]) -> None:
    """Put the KV of all tokens into a runner's blocks; a plain runner computes it."""
    plain = open_on_torch(path, num_blocks=3, max_samples=512, threads=1, device="cpu")
    teacher_forced(plain, tokens, (len(tokens),), [0, 1, 2])
    blocks = range(-(-len(tokens) // 64))
    data, _ = plain.export_blocks(list(blocks))
    runner.admit_blocks([table[block] for block in blocks], data)


def logits_of(runner: TorchRunner, *pieces: Piece) -> Float32:
    runner.execute(batch_of(*pieces))
    return runner.last_logits().copy()
