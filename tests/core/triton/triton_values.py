"""Random values for Triton's kernels, and what their results may differ by from NumPy's."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.core.paged_kv import DEVICE
from torch import Tensor

Float64 = NDArray[np.float64]

dtypes = st.sampled_from([torch.float32, torch.float16])
_ROUNDINGS = {torch.float32: 1e-5, torch.float16: 2e-3}  # of a result of some hundred terms


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def wide(values: Tensor) -> Float64:
    """The same values on the host."""
    return values.double().cpu().numpy()


def check_same(told: Tensor, expected: Tensor) -> None:
    """The same bits on a device; in Triton's interpreter within what rounding explains.

    The interpreter multiplies by NumPy, whose BLAS sums a row's terms in an order that may depend
    on the other rows, by CPU: it shows what a kernel means, not its bits.
    """
    if DEVICE.type == "cuda":
        assert torch.equal(told, expected)
    else:
        share = 10 * _ROUNDINGS[told.dtype]
        torch.testing.assert_close(told, expected, rtol=share, atol=share)


def check_close(
    told: Tensor, expected: Float64, terms: Float64, share: float | None = None
) -> None:
    """Within a share of `terms`, a few roundings of `told`'s dtype unless given.

    Terms are sums of the magnitudes of what was added up: what cancels out may be as wrong as what
    it was made of.
    """
    off = np.abs(wide(told) - expected)
    most = (share or _ROUNDINGS[told.dtype]) * terms + 1e-6
    assert (off <= most).all(), f"{(off / most).max():.2g} times what rounding explains"
