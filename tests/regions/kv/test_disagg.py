"""The arithmetic of the disaggregation bench: slices of traces, objectives, bounds."""

from __future__ import annotations

import pytest
from bench.kv.disagg import (
    HYBRID,
    MAX_OUTPUT,
    MAX_PROMPT,
    SPLIT,
    WHOLE,
    Objective,
    figures,
    jobs,
    lower_bound,
    ratio_of_means,
    shapes,
    verdict,
)
from bench.measuring.load import StreamTimes
from bench.measuring.stats import Cell


def test_a_slice_keeps_the_traces_shape() -> None:
    for shape in shapes():
        asked = jobs(shape, 100, 40, 20.0, salt=1)
        assert (len(asked), asked[0].at, asked[-1].at) == (40, 0.0, 20.0)
        assert [job.at for job in asked] == sorted(job.at for job in asked)
        for job, request in zip(asked, shape.trace[100:140], strict=True):
            assert len(job.prompt) == min(
                max(request.prompt_tokens // shape.prompt_scale, 8), MAX_PROMPT
            )
            assert 2 <= job.output <= MAX_OUTPUT
        assert asked == jobs(shape, 100, 40, 20.0, salt=1)
        assert asked[0].prompt != jobs(shape, 100, 40, 20.0, salt=2)[0].prompt


def test_prompts_share_what_the_trace_shares() -> None:
    shape = next(shape for shape in shapes() if shape.name.startswith("mooncake"))
    asked = jobs(shape, 0, 60, 1.0, salt=1)
    for a, job in enumerate(asked):
        for b in range(a):
            blocks, others = shape.trace[a].blocks, shape.trace[b].blocks
            pairs = zip(blocks, others, strict=False)
            shared = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
            count = min(len(blocks), len(others)) if shared is None else shared
            tokens = min(512 // shape.prompt_scale * count, len(job.prompt), len(asked[b].prompt))
            assert job.prompt[:tokens] == asked[b].prompt[:tokens]


def test_goodput_counts_requests_that_are_in_time_at_both_ends() -> None:
    slo = Objective(ttft=1.0, itl=0.1)
    good = StreamTimes(events=[0.9, 1.0, 1.05], tokens=3)
    late = StreamTimes(events=[1.1, 1.2, 1.3], tokens=3)
    slow = StreamTimes(events=[0.5, 0.9], tokens=2)
    assert [slo.is_met(each) for each in (good, late, slow)] == [True, False, False]
    got = figures([good, late, slow], 2.0, slo)
    assert (got["goodput"], got["tok/s"]) == (30.0, 4.0)
    assert got["in time"] == pytest.approx(100 / 3)
    assert (got["TTFT p50"], got["TTFT p99"]) == pytest.approx((900, 1100))
    assert got["ITL p99"] == pytest.approx(400)


def test_a_bound_lies_below_the_mean_and_at_a_value_without_spread() -> None:
    pairs = [(value, 1.0) for value in (0.8, 0.9, 1.0, 1.1, 1.2, 0.95, 1.05)]
    assert ratio_of_means(pairs) == pytest.approx(1.0)
    assert 0.85 < lower_bound(pairs) < 1.0
    assert lower_bound([(0.7, 1.0)] * 7) == pytest.approx(0.7)
    assert ratio_of_means([*pairs, (0.0, 0.0)]) == pytest.approx(1.0)  # it was too much for both


def test_the_verdict_compares_with_the_best() -> None:
    goodput = Cell("goodput", "requests/min")
    for name, value in ((SPLIT, 1.0), (HYBRID, 1.5), (WHOLE, 2.0)):
        for _ in range(7):
            goodput.add(name, value)
    text, ratios = verdict(goodput)
    assert ratios == pytest.approx({"automatic / best": 0.75, "lower bound": 0.75})
    assert text.startswith(f"most goodput: {WHOLE}; prefill and decode apart reach 0.50")
