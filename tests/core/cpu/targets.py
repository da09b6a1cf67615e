"""What compiled kernels are compared on: each target of this CPU, and random rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from skerry_core.config import ConfigError
from skerry_core.kernels.simd.targets import TARGETS, choose_target


def supported_targets() -> Iterator[Any]:
    for name in TARGETS:
        try:
            yield pytest.param(choose_target(name), id=name)
        except ConfigError as error:
            yield pytest.param(None, id=name, marks=pytest.mark.skip(reason=str(error)))


on_each_target = pytest.mark.parametrize("target", list(supported_targets()))


def assert_same_bits(got: Any, wanted: Any) -> None:
    assert got.dtype == wanted.dtype == np.float32
    np.testing.assert_array_equal(
        np.ascontiguousarray(got).view(np.int32), np.ascontiguousarray(wanted).view(np.int32)
    )
