"""A model divided over two GPUs, each layer by heads and widths: `python -m bench.device.gpu_ranks`
is one of the ranks, each a process, which all run the same steps. Over gloo where there is no GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from bench.device.gpu_batches import decoding, num_blocks
from bench.device.gpu_files import write_model
from bench.device.gpu_program import ROOT
from bench.device.gpu_report import Figure
from bench.device.gpu_sizes import DRY, FULL, Sizes
from bench.device.gpu_steps import step_seconds
from bench.device.gpu_subject import Clock, Subject
from skerry_core.models.sharding import whole_model
from skerry_core.runner import RunnerSizes
from skerry_core.runners.torch.opening import TorchOptions, load
from skerry_core.runners.torch.rank_links import RankLinks
from skerry_core.runners.torch.torch_runner import TorchRunner

RANKS = 2
MOST_SECONDS = 150.0  # of their lives


def divided(subject: Subject) -> list[Figure]:
    """Decode by two ranks, against half of the bytes each. Nothing where there are fewer GPUs."""
    is_cuda = subject.device.type == "cuda"
    if is_cuda and torch.cuda.device_count() < RANKS:
        return []
    s = subject.sizes
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), s.model)
        command = [sys.executable, "-m", "bench.device.gpu_ranks", folder, str(int(s is DRY))]
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "core")])}
        ranks = [
            subprocess.Popen([*command, str(rank)], env=env, stdout=subprocess.PIPE, text=True)
            for rank in range(RANKS)
        ]
        try:
            told, *_ = [rank.communicate(timeout=MOST_SECONDS)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if not told:
        raise RuntimeError("a rank ended before it was measured")
    figures = []
    for rows, seconds in json.loads(told):
        num_bytes = subject.weight_bytes() + subject.kv_bytes(rows * (s.context + s.chain // 2))
        share = num_bytes / RANKS / subject.copy_rate / seconds
        name = f"decode, {rows} rows, over {RANKS} ranks"
        figures.append(Figure(name, 1e3 * seconds, "ms", "half of the bytes", share))
    return figures


def main(folder: str, is_dry: str, number: str) -> None:
    sizes: Sizes = DRY if int(is_dry) else FULL
    rank = int(number)
    device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    shard = replace(whole_model(sizes.model), tensor_rank=rank, tensor_size=RANKS)
    options = TorchOptions.of(device=str(device), dtype=sizes.dtype, threads=1)
    loaded = load(Path(folder), options, shard)
    links = RankLinks(Path(folder) / "store", shard, 0, 1, device)
    room = num_blocks([sizes.context + sizes.chain] * max(sizes.batches))
    most = max(sizes.batches)
    limits = RunnerSizes(num_blocks=room, max_step_tokens=most, max_samples=most)
    runner = TorchRunner.of(loaded, limits, links=links)
    clock, seconds = Clock(sizes, device), list[tuple[int, float]]()
    for rows in sizes.batches:
        steps = decoding([sizes.context] * rows, sizes.chain)
        seconds.append((rows, step_seconds(clock, runner, steps)))
    if rank == 0:
        print(json.dumps(seconds))
    runner.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
