"""Over how many ranks a model is divided where nobody says."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
from tests.core.runners.runner_suite import CACHE, write_model

from skerry_core.ranks import Parallel
from skerry_core.runner import RunnerSetup, WantedSizes
from skerry_core.runners.division import FAST_LINK, DivisionNeed, RankDevices, divide
from skerry_core.runners.pipeline import opening
from skerry_core.runners.pipeline.pipeline_runner import PipelineRunner

GIB = 1 << 30
BOTH = ("tensor", "pipeline")


def need(weights: float, kv: float, layers: int = 32, kv_heads: int = 8) -> DivisionNeed:
    return DivisionNeed(
        weights=round(weights * GIB), kv=round(kv * GIB), num_layers=layers, num_kv_heads=kv_heads
    )


def devices(*memory: float, link: float = FAST_LINK) -> RankDevices:
    return RankDevices(memory=tuple(round(each * GIB) for each in memory), link=link)


@pytest.mark.parametrize(
    ("what", "there", "axes", "tensor", "pipeline"),
    [
        (need(15, 4), devices(80, 80), BOTH, 1, 1),
        (need(75, 4), devices(80, 80), BOTH, 2, 1),  # KV counts
        (need(140, 40), devices(80, 80, 80, 80), BOTH, 4, 1),  # three do not divide 8 heads
        (need(140, 40), devices(80, 80, 80), BOTH, 1, 3),
        (need(140, 4), devices(80, 80, 80, link=1e9), BOTH, 1, 2),
        (need(140, 4), devices(80, 80, link=1e9), BOTH, 1, 2),
        (need(140, 4), devices(80, 80), ("pipeline",), 1, 2),
        (need(140, 4, kv_heads=1), devices(80, 80), BOTH, 1, 2),
        (need(140, 4), devices(80, 80, link=1e9), ("tensor",), 1, 1),
        (need(30, 2), devices(24, 8, 24), BOTH, 2, 1),  # the largest are counted
        (need(30, 2, layers=1, kv_heads=1), devices(24, 24), BOTH, 1, 1),
        (need(999, 2), devices(24, 24), BOTH, 1, 1),
        (need(1, 1), devices(), BOTH, 1, 1),
    ],
)
def test_as_few_ranks_as_have_room(
    what: DivisionNeed, there: RankDevices, axes: tuple[str, ...], tensor: int, pipeline: int
) -> None:
    assert divide(what, there, axes).parallel == Parallel(tensor=tensor, pipeline=pipeline)


def test_the_reason_has_the_figures() -> None:
    reason = divide(need(75, 4), devices(80, 80), BOTH).reason
    assert reason == (
        "75.0 GiB of weights and 4.0 GiB of KV do not fit one device with 80.0 GiB free; 2 share "
        "each layer"
    )
    reason = divide(need(999, 2), devices(24, 24), BOTH).reason
    assert reason.endswith("24.0 GiB free, nor any number of the 2 that there are")


def test_processes_are_divided_where_their_memory_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = RunnerSetup(
        weights=write_model(tmp_path, "llama"), vocab_size=1, max_context=1,
        sizes=WantedSizes(num_blocks=1000), threads=1, cache_dir=CACHE,
        progress=lambda what, share: None,
    )  # fmt: skip
    endless = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda _: (endless, endless))
    assert PipelineRunner.survey(setup) is None
    limit = opening.OVERHEAD + 10_000_000
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    found = PipelineRunner.survey(setup)
    assert found is not None
    what, there = found
    assert what.kv == 1000 * 2 * 2 * 2 * 64 * 16 * 2  # layers, K and V, heads, tokens, dim, bytes
    assert there.memory[0] == 10_000_000
    assert divide(what, there, ("pipeline",)).parallel == Parallel(pipeline=2)
