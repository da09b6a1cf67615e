"""Names for the types in the kernels' signatures. They are for readers: numba infers its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float16 = NDArray[np.float16]
Float32 = NDArray[np.float32]
Int8 = NDArray[np.int8]
Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
UInt8 = NDArray[np.uint8]
Array = NDArray[Any]

Address = int  # where something lies in memory
Record = Any  # one element of a structured array, whose fields NumPy cannot type
