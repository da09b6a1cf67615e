"""Files that are not trusted: mapped as bytes, or read as JSON within a bound."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np

from skerry_core.weights.tensors import Bytes, WeightsError

_MAX_JSON = 1 << 20  # bytes of a config.json


def map_file(path: Path) -> Bytes:
    """Return a file's bytes, read when they are first used. Raises WeightsError and OSError."""
    with path.open("rb") as stream:
        try:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:  # what mmap says to a length of zero
            raise WeightsError(f"{path}: the file is empty") from None
    return np.frombuffer(mapped, np.uint8)


def read_json_file(path: Path) -> dict[str, Any]:
    """Read a small JSON file that holds an object. Raises WeightsError and OSError."""
    with path.open("rb") as stream:
        raw = stream.read(_MAX_JSON + 1)
    if len(raw) > _MAX_JSON:
        raise WeightsError(f"{path}: more than {_MAX_JSON} bytes")
    return read_json_object(raw, str(path))


def read_json_object(raw: bytes, what: str) -> dict[str, Any]:
    """Decode a JSON object without repeated keys. Raises WeightsError, beginning with `what`."""
    try:
        value = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{what} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise WeightsError(f"{what} is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = dict(pairs)
    if len(keys) != len(pairs):
        raise ValueError("a key occurs twice")
    return keys
