"""Steps that only decode, as they are captured and replayed: one transfer and one launch, from the
tokens of the step before to its own, with the answers of steps that are not captured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.core.open_runners import open_on_torch
from tests.core.paged_kv import DEVICE
from tests.core.runners.hand_batches import Piece, batch_of
from tests.core.runners.runner_suite import write_model

pytest.importorskip("triton")

from tests.core.triton.launches import captured, launches

from skerry_core.batch import ForwardBatch
from skerry_core.runners.torch.open_steps import Kernels
from skerry_core.runners.torch.torch_runner import TorchRunner

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(DEVICE.type == "cuda", reason="a stand-in for its graphs"),
]


def open_runner(path: Path, kernels: Kernels = "triton") -> TorchRunner:
    return open_on_torch(
        path, num_blocks=8, max_samples=4, threads=1, kernels=kernels, device="cpu"
    )


def sampled(*rows: Piece) -> ForwardBatch:
    """Return rows of which one draws its token: to search takes an interpreter long."""
    batch = batch_of(*rows)
    samples = batch.sampling.samples
    samples["temperature"], samples["top_p"], samples["top_k"] = 0.9, 0.9, 20
    samples["temperature"][1:] = 0
    samples["seed"] = 5
    return batch


def decode(position: int, *tables: list[int]) -> ForwardBatch:
    """Return rows at a position whose tokens the step before made, each from another's sample."""
    batch = sampled(*(Piece([0], position, table) for table in tables))
    rows = range(len(tables))
    batch.feeds = np.array([[row, len(rows) - 1 - row] for row in rows], np.int32)
    return batch


def biased(batch: ForwardBatch) -> ForwardBatch:
    s = batch.sampling
    s.bias_start = np.array([0, *[1] * batch.num_samples], np.int32)
    s.bias_ids, s.bias_values = np.array([7], np.int32), np.array([50], np.float32)
    return batch


def test_a_decode_step_is_one_transfer_and_one_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path, "qwen2")
    plain, runner = open_runner(path, "torch"), open_runner(path)
    steps = [
        sampled(Piece([3], 0, [4]), Piece([9, 6], 0, [7])),  # a chunk: not captured
        decode(2, [4], [7]),
        decode(3, [4], [7]),
        biased(decode(4, [4], [7])),
        decode(5, [4], [7]),
        decode(6, [4]),
    ]
    expected = [(plain.execute(batch).token_ids, plain.last_logits().copy()) for batch in steps]
    assert expected[3][0][0] == 7
    seen = []
    with launches(monkeypatch) as launched, captured(monkeypatch, runner._steps, launched):
        for batch, (tokens, logits) in zip(steps, expected, strict=True):
            launched.clear()
            runner.launch(batch)
            seen.append(launched.copy())
            np.testing.assert_array_equal(runner.collect().token_ids, tokens)
            np.testing.assert_allclose(runner.last_logits(), logits, rtol=0, atol=1e-5)
    assert [step.count("replay") for step in seen] == [0, 1, 1, 1, 1, 1]
    assert [step.count("capture") for step in seen] == [0, 1, 0, 0, 0, 1]  # of 2 rows, and of one
    assert seen[2] == ["copy_", "replay"]
    assert seen[3][:2] == ["copy_", "replay"]
    assert "find_peaks" in seen[3]  # chosen of biased logits
    assert seen[4] == ["copy_", "copy_", "replay"]  # what was chosen then lies elsewhere


def test_captures_leave_one_place_for_logits_whatever_the_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = open_runner(write_model(tmp_path, "qwen2"))
    monkeypatch.setattr("skerry_core.runners.torch.triton_steps._PREFILLS", ())
    places = set()
    with launches(monkeypatch) as launched, captured(monkeypatch, runner._steps, launched):
        runner.warm_up(lambda what, share: None)
        assert launched.count("capture") == 3  # of 1, 2 and 4 rows
        for rows in (1, 2, 3):
            runner.execute(batch_of(*(Piece([3], 0, [row]) for row in range(rows))))
            assert runner._logits.shape == (rows, runner.model.vocab_size)
            places.add(runner._logits.data_ptr())
        assert launched.count("capture") == 3
    assert len(places) == 1
    assert runner._logits.dtype is torch.float32
