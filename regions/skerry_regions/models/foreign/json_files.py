"""JSON files beside a model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson

from skerry_regions.models.problems import UnsupportedModel

MAX_JSON_SIZE: Final = 128 << 20  # bytes; tokenizer.json of the largest vocabularies is 34 MB


def read_json(path: Path) -> Any:
    """Return a file's content; None when it is not there. Raises `UnsupportedModel`."""
    try:
        if path.stat().st_size > MAX_JSON_SIZE:
            raise UnsupportedModel(f"{path} is larger than {MAX_JSON_SIZE} bytes")
        return orjson.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise UnsupportedModel(f"{path} is not JSON: {error}") from None
