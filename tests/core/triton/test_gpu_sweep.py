"""`bench.gpu_sweep`: launches are found and changed from outside, and what wins is beyond noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from bench.device.gpu_sizes import DRY
from bench.device.gpu_subject import Subject
from bench.device.sweep.launches import Change, candidates_of, changed, launches_of
from bench.device.sweep.trials import Case, sweep

from skerry_core.kernels.triton import few_products, triton_sampling

pytestmark = pytest.mark.triton

X, WEIGHT, STREAM = torch.randn(3, 64), torch.randn(100, 64), torch.randn(3, 100)
EXPECTED = X @ WEIGHT.T + STREAM


def product() -> Tensor:
    return few_products.linear_onto(X, WEIGHT, None, STREAM)


def test_candidates_are_made_of_what_is_launched() -> None:
    (launch,) = launches_of(product)
    assert (launch.kernel, launch.arguments["outputs"]) == ("_product_few", 100)
    tried: dict[str, list[int]] = {}
    for change in candidates_of(launch):
        tried.setdefault(change.name, []).append(change.value)
    warps, stages = (launch.arguments[name] for name in ("num_warps", "num_stages"))
    assert tried["num_warps"] == [warps // 2, 2 * warps]
    assert stages not in tried["num_stages"]
    outputs, rows, inner = (launch.arguments[name] for name in ("OUTPUTS", "ROWS", "INNER"))
    assert tried["OUTPUTS"] == [size for size in (outputs // 2, 2 * outputs) if size >= 16]
    assert tried["INNER"] == [inner // 2, 2 * inner]
    assert tried["ROWS"] == [2 * rows]  # one tile has all rows: the grid stays


def launched(*changes: Change) -> tuple[tuple[int, ...], Mapping[str, Any]]:
    """The grid and the options of a product that is launched with changes."""

    def run() -> None:
        with changed(changes):
            torch.testing.assert_close(product(), EXPECTED)

    (launch,) = launches_of(run)
    return launch.grid, launch.arguments


def test_a_grid_follows_its_tiles_and_the_values_stay() -> None:
    grid, options = launched()
    tile = options["OUTPUTS"]
    assert grid == (-(-100 // tile),)
    wide, others = launched(
        Change("_product_few", "OUTPUTS", 2 * tile), Change("_product_few", "num_warps", 16)
    )
    assert wide == (-(-100 // (2 * tile)),)
    assert (others["OUTPUTS"], others["num_warps"]) == (2 * tile, 16)
    assert launched(Change("_another", "OUTPUTS", 2 * tile))[0] == grid
    assert launched(Change("_product_few", "ROWS", 16))[0] == grid


def test_constants_are_others_meanwhile() -> None:
    with changed([change := Change(triton_sampling, "_SLICE", 1024)]):
        assert triton_sampling._SLICE == 1024
    assert triton_sampling._SLICE != 1024
    assert str(change) == "triton_sampling._SLICE=1024"


def test_what_makes_other_values_or_does_not_run_is_left_out() -> None:
    subject = Subject(DRY, torch.device("cpu"))
    constants = [Change(triton_sampling, name, 7) for name in ("_SLICE", "_BINS", "_CHUNK")]

    def prepare() -> object:
        if vars(triton_sampling)["_BINS"] == 7:
            raise MemoryError("no room for so many\nbytes")
        return lambda: torch.ones(3) * (2 if vars(triton_sampling)["_SLICE"] == 7 else 1)

    rows = sweep(subject, Case("case", prepare, 1e-6, constants), 10.0)  # type: ignore[arg-type]
    told = {row.change: row for row in rows}
    assert told["triton_sampling._SLICE=7"].failure == "makes other values: 1"
    assert told["triton_sampling._BINS=7"].failure == "MemoryError: no room for so many"
    assert not told["triton_sampling._CHUNK=7"].failure
    assert told["as it is"].gain == 1.0
