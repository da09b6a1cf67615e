"""`python -m bench.gpu --json FILE`: the Torch runner on a GPU, beside its peers and its ceilings.

One script of under nine minutes. A machine with numpy, torch and triton is enough; with
transformers its static cache under torch.compile is a peer too. Ceilings are measured in the same
run, and every figure is given as a share of the one that bounds it. `--dry` runs the same code in
tiny shapes, on the CPU where there is no GPU: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

NO_GPU = "bench.gpu measures a CUDA device, and there is none; --dry tries the script without one"


def is_wanted(name: str, only: list[str], skip: list[str]) -> bool:
    """Return whether a measure is among those that were named, or not among those to skip."""
    return (not only or any(words in name for words in only)) and not any(
        words in name for words in skip
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--dry", action="store_true", help="tiny shapes; figures mean nothing")
    words: dict[str, Any] = {"metavar": "WORDS", "nargs": "+", "default": []}
    parser.add_argument("--only", **words, help="ceilings, and what has one of these in its name")
    parser.add_argument("--skip", **words, help="not what has one of these in its name")
    parser.add_argument("--seconds", type=float, default=520.0, help="begin nothing after this")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "core"))  # nothing is installed
    import torch

    has_gpu = torch.cuda.is_available()
    if not has_gpu and not options.dry:
        print(NO_GPU, file=sys.stderr)
        return 2
    if not has_gpu:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    from bench.device.gpu_figures import Bench
    from bench.device.gpu_sizes import DRY, FULL

    started = time.perf_counter()
    bench = Bench(DRY if options.dry else FULL, torch.device("cuda" if has_gpu else "cpu"))
    report: dict[str, Any] = {"device": bench.describe(), "dry": options.dry}
    figures, failures = report["figures"], report["failures"] = [], {}
    for name, measure in bench.measures():
        if name != "ceilings" and not is_wanted(name, options.only, options.skip):
            continue
        if time.perf_counter() - started > options.seconds:
            failures[name] = "no time left"
        else:
            try:
                measured = measure()
            except Exception as error:  # the other figures are worth having
                failures[name] = f"{type(error).__name__}: {error}"
            else:
                figures += map(asdict, measured)
                print(*(figure.line() for figure in measured), sep="\n", flush=True)
        gc.collect()  # a failure's frames hold what it had
        torch.cuda.empty_cache()  # graphs' memory is not for others until then
        if name in failures:
            print(f"{name}: left out: {failures[name]}", file=sys.stderr)
        report["seconds"] = time.perf_counter() - started
        if options.json is not None:
            options.json.write_text(json.dumps(report, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
