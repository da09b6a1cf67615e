"""Skerry's encoder as a benchmark worker: words to vectors, tokenising included."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from skerry_core.encoder.encoder import Encoder
from skerry_edge.text.encoder import EncoderText
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.store import ModelStore


def main(model: str, home: Path, threads: int) -> None:
    spec = Catalog.load(home).resolve(model)
    files = ModelStore(home).open(spec)
    text = EncoderText(files, max_tokens=spec.context_window)
    encoder = Encoder.open(files.weights, threads=threads, cache_dir=home / "cache")
    encoder.warm_up(lambda _what, _share: None)

    def encode(texts: list[str]) -> list[list[float]]:
        return encoder.encode(list(text.encode(texts, truncate=True))).tolist()

    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        vectors = encode(request["texts"])
        answer: dict[str, Any] = {"seconds": time.perf_counter() - start}
        if request.get("vectors"):
            answer["vectors"] = vectors
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    encoder.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
