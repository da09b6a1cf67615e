"""Layers over few rows: their products against NumPy's, and what a step launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.open_runners import open_on_torch
from tests.core.paged_kv import DEVICE
from tests.core.runners.hand_batches import Piece, batch_of
from tests.core.runners.runner_suite import MODELS
from tests.core.triton.triton_values import Float64, check_close, random, wide
from tests.properties import examples

pytest.importorskip("triton")

from tests.core.triton.launches import launches

from skerry_core.kernels.triton import few_products

pytestmark = [pytest.mark.gpu, pytest.mark.triton]

EPS = 1e-5
cases = given(
    tokens=st.integers(1, 16), groups=st.integers(1, 70), outputs=st.integers(1, 40),
    seed=st.integers(0, 99),
)  # fmt: skip


def normed(x: Float64, gain: Float64) -> Float64:
    normed: Float64 = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * gain
    return normed


@settings(max_examples=examples(3), deadline=None)
@cases
def test_a_norm_before_a_product(tokens: int, groups: int, outputs: int, seed: int) -> None:
    x, gain = 3 * random(tokens, 16 * groups, seed=seed), random(16 * groups, seed=1)
    weight, bias = random(outputs, 16 * groups, seed=2), random(outputs, seed=3)
    told = few_products.normed_linear(x, gain, EPS, weight, bias)
    before = normed(wide(x), wide(gain))
    terms = np.abs(before) @ np.abs(wide(weight)).T + np.abs(wide(bias))
    check_close(told, before @ wide(weight).T + wide(bias), terms)


@settings(max_examples=examples(3), deadline=None)
@cases
def test_swiglu_behind_it(tokens: int, groups: int, outputs: int, seed: int) -> None:
    x, gain = random(tokens, 16 * groups, seed=seed), random(16 * groups, seed=1)
    weight = random(2 * outputs, 16 * groups, seed=2)
    told = few_products.normed_swiglu(x, gain, EPS, weight)
    before = normed(wide(x), wide(gain))
    gate, up = np.split(before @ wide(weight).T, 2, axis=1)
    terms = np.split(np.abs(before) @ np.abs(wide(weight)).T, 2, axis=1)
    expected = gate / (1 + np.exp(-gate)) * up
    check_close(told, expected, terms[0] * (np.abs(up) + 1) + terms[1] * (np.abs(gate) + 1))


@settings(max_examples=examples(3), deadline=None)
@cases
def test_the_residual_stream_behind_it(tokens: int, groups: int, outputs: int, seed: int) -> None:
    x, weight = random(tokens, 16 * groups, seed=seed), random(outputs, 16 * groups, seed=2)
    bias, stream = random(outputs, seed=3), random(tokens, outputs, seed=4)
    told = few_products.linear_onto(x, weight, bias, stream)
    added = wide(bias) + wide(stream)
    terms = np.abs(wide(x)) @ np.abs(wide(weight)).T + np.abs(added)
    check_close(told, wide(x) @ wide(weight).T + added, terms)


@pytest.mark.skipif(DEVICE.type == "cuda", reason="recorded in Triton's interpreter")
def test_a_decode_step_launches_five_kernels_for_each_layer(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = open_on_torch(
        models["qwen2"], num_blocks=4, max_samples=4, threads=1, kernels="triton", device="cpu"
    )
    with launches(monkeypatch) as launched:
        runner.launch(batch_of(Piece([3], 0, [2])))
    layer = ["_product_few", "_attend_split", "_product_few", "_product_few", "_product_few"]
    step = launched[launched.index("_feed") : launched.index("find_peaks")]
    before, after = ["_feed", "embedding"], ["index_select", "_norm", "linear"]
    assert step == before + layer * len(MODELS["qwen2"].layers) + after


def test_what_layers_do_otherwise_they_do_in_parts(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 17 tokens, and a runner whose bits do not depend on the batch."""

    def refused(*arguments: object) -> None:
        raise AssertionError("few rows")

    monkeypatch.setattr(few_products, "normed_linear", refused)
    path = models["qwen2"]
    options = {"num_blocks": 4, "max_samples": 20, "threads": 1, "kernels": "triton"}
    runner = open_on_torch(path, device=str(DEVICE), **options)  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match="few rows"):
        runner.execute(batch_of(Piece([3], 0, [2])))
    runner.execute(batch_of(Piece([3] * 17, 0, [2])))
    runner.close()
    runner = open_on_torch(
        path,
        device=str(DEVICE),
        deterministic=True,
        **options,  # type: ignore[arg-type]
    )
    runner.execute(batch_of(Piece([3], 0, [2])))
    runner.close()
