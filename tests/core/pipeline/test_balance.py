"""Cuts of a model are the best there are, by trying them all."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from bench.subjects.public_shapes import PUBLIC_SHAPES
from hypothesis import given
from hypothesis import strategies as st
from tests.core.runners.runner_suite import MODELS

from skerry_core.config import ConfigError, LayerConfig
from skerry_core.kernels.matmul.layout import PackedLayout, WeightFormat
from skerry_core.models.tensor_names import expected_shapes
from skerry_core.ranks import RankLost
from skerry_core.runners.packing.packed_file import PackedHeader
from skerry_core.runners.pipeline.opening import (
    RankPace,
    pace_message,
    paces_of,
    plan_stages,
    step_bytes,
)
from skerry_core.runners.rank_messages import MessageKind, RankMessage, encode
from skerry_core.runners.stage_balance import CONTEXT, ROWS, alike, cut, kv_bytes


def slowest(
    cuts: Sequence[int], layers: Sequence[float], head: float, speeds: Sequence[float],
    fixed: Sequence[float],
) -> float:  # fmt: skip
    edges = [0, *cuts, len(layers)]
    return max(
        fixed[rank] + speed * (sum(layers[first:last]) + (head if last == len(layers) else 0))
        for rank, (speed, first, last) in enumerate(zip(speeds, edges[:-1], edges[1:], strict=True))
    )


def best(
    layers: Sequence[float], head: float, speeds: Sequence[float], fixed: Sequence[float]
) -> float:
    """The least time of the slowest stage, of all cuts."""
    every = itertools.combinations(range(1, len(layers)), len(speeds) - 1)
    return min(slowest(cuts, layers, head, speeds, fixed) for cuts in every)


@given(
    st.lists(st.floats(0.5, 2.0), min_size=4, max_size=9),
    st.floats(0, 6),
    st.lists(st.floats(0.2, 3.0), min_size=1, max_size=4),
    st.floats(0, 0.5),
)
def test_no_cut_is_better(
    layers: list[float], head: float, speeds: list[float], first: float
) -> None:
    fixed = [first] + [0.0] * (len(speeds) - 1)
    found = cut(layers, head, speeds, fixed)
    assert len(found) == len(speeds) - 1
    assert slowest(found, layers, head, speeds, fixed) == pytest.approx(
        best(layers, head, speeds, fixed)
    )


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_a_machine_three_times_slower_has_fewer_layers(slow: int) -> None:
    """Of three; within 5 % of the best cut."""
    speeds = [1.0] * 3
    speeds[slow] = 3.0
    layers, head, fixed = [1.0] * 30, 4.0, [0.0] * 3
    found = cut(layers, head, speeds, fixed)
    assert slowest(found, layers, head, speeds, fixed) <= 1.05 * best(layers, head, speeds, fixed)
    edges = [0, *found, 30]
    counts = [last - first for first, last in itertools.pairwise(edges)]
    assert counts[slow] <= 5


def test_equal_ranks_share_layers_and_the_head_counts() -> None:
    assert cut([1.0] * 30, 0.0, [1.0, 1.0], [0.0, 0.0]) == (15,)
    assert cut([1.0] * 30, 6.0, [1.0, 1.0], [0.0, 0.0]) == (18,)
    assert cut([1.0] * 4, 100.0, [1.0, 1.0], [0.0, 0.0]) == (3,)  # each has one at least
    assert cut([1.0], 1.0, [1.0], [0.0]) == ()


def test_more_ranks_than_layers() -> None:
    with pytest.raises(ConfigError, match="a model of 2 layers has no 3 stages"):
        cut([1.0, 1.0], 0.0, [1.0] * 3, [0.0] * 3)


def test_speeds_that_differ_little_are_one() -> None:
    assert alike([1.0, 1.05, 1.02]) == [1.05, 1.05, 1.05]
    assert alike([1.0, 3.0, 1.05]) == [1.05, 3.0, 1.05]
    assert alike([2.0, 1.0]) == [2.0, 1.0]
    assert alike([1.0]) == [1.0]


def header_of(name: str) -> PackedHeader:
    config = PUBLIC_SHAPES[name]
    shapes = expected_shapes(config)
    layouts = {
        tensor: PackedLayout(WeightFormat.Q4_0, shape[-2] * (shape[0] if len(shape) == 3 else 1),
                             shape[-1], 16)
        for tensor, shape in shapes.items()
        if len(shape) > 1 and not tensor.endswith(".bias")
    }  # fmt: skip
    vectors = {name: shape[0] for name, shape in shapes.items() if len(shape) == 1}
    return PackedHeader(
        key="", config=config, layouts=layouts, offsets={}, vector_sizes=vectors, size=0
    )


def test_a_rank_that_needs_long_to_send_has_fewer_layers(caplog: pytest.LogCaptureFixture) -> None:
    """What a step takes on its way counts for none."""
    header = header_of("llama-3.1-8b")
    layers, _ = step_bytes(header)
    speed = 1e-10  # seconds a byte
    one_layer = layers[0] * speed

    def first(sending: float, arriving: float) -> int:
        return plan_stages(header, [RankPace(speed, sending, arriving), RankPace(speed)])[0].last

    assert first(0.0, 0.0) == first(0.0, 1.0) == first(4e-5, 0.0)
    assert first(4 * one_layer, 0.0) == first(0.0, 0.0) - 2
    with caplog.at_level(logging.INFO):
        first(0.002, 0.05)
    assert "rank 0 sends such a step on in 2.00 ms; it is there after 50.00 ms" in caplog.text


def test_ranks_of_another_build_are_refused() -> None:
    paces = [RankPace(1.0, 2.0, 3.0), RankPace(4.0)]

    def message(build: str) -> RankMessage:
        return RankMessage([memoryview(part).cast("B") for part in pace_message(paces, build)])

    assert paces_of(message("0a"), "0a") == paces
    with pytest.raises(RankLost, match="another numeric build, 0b and not 0a: run the same"):
        paces_of(message("0b"), "0a")
    speeds = encode(MessageKind.PACE, [np.ones(2), np.frombuffer(b"0a", np.uint8)])
    with pytest.raises(RankLost, match=r"paces came as \[2\]"):
        paces_of(RankMessage([memoryview(part).cast("B") for part in speeds]), "0a")


def test_the_bytes_of_a_step() -> None:
    """An 8B model: 218M weights a layer and 525M in the head, 4.5 bits each, and KV in halves."""
    layers, head = step_bytes(header_of("llama-3.1-8b"))
    assert len(layers) == 32
    weights, kv = 218_103_808 * 4.5 / 8, ROWS * CONTEXT * 2 * 8 * 128 * 2
    assert layers[0] == pytest.approx(weights + kv + 4 * 2 * 4096, rel=1e-6)
    assert head == pytest.approx(128_256 * 4096 * 4.5 / 8 + 4 * 4096, rel=1e-6)
    _, tied = step_bytes(header_of("llama-3.2-1b"))
    assert tied == pytest.approx(128_256 * 2048 * 4.5 / 8 + 4 * 2048, rel=1e-6)


def test_a_step_reads_the_experts_that_its_rows_choose() -> None:
    layers, _ = step_bytes(header_of("qwen3-30b-a3b"))
    experts = 128 * 3 * 2048 * 768 * 4.5 / 8
    chosen = ROWS * 8 / 128 * experts
    assert chosen < layers[0] < chosen + 0.2 * experts


def test_a_window_bounds_the_kv_that_is_read() -> None:
    config = replace(MODELS["llama"], layers=(LayerConfig(window=64), LayerConfig()))
    near, far = kv_bytes(config, 0), kv_bytes(config, 1)
    assert far == near * CONTEXT / 64
