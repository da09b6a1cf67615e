"""Has only what a GPU's machine has, as docs/gpu.md reckons: `import` it, or `pytest -p` it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ABSENT = {
    "aiohttp", "cryptography", "gguf", "jinja2", "llguidance", "llvmlite", "msgspec", "nats",
    "numba", "orjson", "rich", "skerry", "skerry_cli", "skerry_dns", "skerry_edge",
    "skerry_regions", "starlette", "uvicorn", "xxhash", "yaml", "zstandard",
}  # fmt: skip


class _Absent(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


sys.meta_path.insert(0, _Absent())
