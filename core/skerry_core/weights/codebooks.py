"""Formats whose 4 bits name a value of a table: GGML's IQ4_NL and IQ4_XS, and MXFP4.

ggml-common.h; Open Compute Project, Microscaling Formats (MX) 1.0, of whose values GGML has the
doubles, to keep them whole.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)

CODEBOOKS = {"IQ4_NL": IQ4_VALUES, "IQ4_XS": IQ4_VALUES, "MXFP4": MXFP4_VALUES}
"""What the 16 codes of a format stand for."""


def looked_up(codes: NDArray[np.uint8], format_: str) -> NDArray[np.int8]:
    """Return what codes below 16 stand for."""
    return np.array(CODEBOOKS[format_], np.int8)[codes]


def half_powers(exponents: NDArray[Any]) -> NDArray[np.float32]:
    """Return 2^(e - 128) of exponents of 8 bits, half of what E8M0 means; exact, subnormals too."""
    e = exponents.astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << e, (e - np.uint32(1)) << np.uint32(23))
    return bits.astype(np.uint32).view(np.float32)
