"""Coverage-guided fuzzing of one parser: `python -m tests.fuzz.run NAME [--seconds 600]`.

Needs atheris (`pip install --group fuzz`). Inputs that reach new code are kept in the corpus folder
that is named, and an input that raises is written to the working folder, as libFuzzer does:
`python -m tests.fuzz.run NAME crash-…` runs it once more.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import pkgutil
import sys
import warnings
from pathlib import Path
from random import Random

from tests.fuzz.grammars import MUTATIONS

CORPUS = Path(__file__).parent / "corpus"
MAX_BYTES = 4096
SMALLER = {"schemas": 1024, "sse": 1024, "templates": 256}  # read in Python: many before long ones
BROKEN = 0.3  # of what grammars make, as libFuzzer does
PACKAGES = ["skerry", "skerry_edge", "skerry_regions", "skerry_core", "skerry_dns"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("inputs", nargs="*", help="run just these files")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path, help="where new inputs are kept; begins with ours")
    args = parser.parse_args()
    os.environ.setdefault("NUMBA_BOUNDSCHECK", "1")
    warnings.simplefilter("ignore", SyntaxWarning)  # of templates, which are compiled to Python
    atheris = importlib.import_module("atheris")
    fast = importlib.util.find_spec("skerry_dns.fast")
    assert fast is not None
    # Numba cannot compile what atheris instruments.
    modules = pkgutil.iter_modules(fast.submodule_search_locations, "skerry_dns.fast.")
    compiled = [each.name for each in modules]
    with atheris.instrument_imports(include=PACKAGES, exclude=compiled):
        targets = importlib.import_module("tests.fuzz.targets")
        run = targets.TARGETS[args.name]()
        if args.name == "templates":  # a loop that ends at the limit takes half a second otherwise
            vars(importlib.import_module("skerry_edge.text.templates.template"))["BASE_WORK"] = (
                1 << 12
            )
    folders = [str(args.corpus)] if args.corpus is not None else []
    seeds = CORPUS / args.name
    folders += [str(seeds)] if seeds.is_dir() else []
    options = [f"-max_total_time={args.seconds}", "-print_final_stats=1"]
    options += [f"-max_len={SMALLER.get(args.name, MAX_BYTES)}"]
    mutation = MUTATIONS.get(args.name)

    def mutated(data: bytes, max_size: int, seed: int) -> bytes:
        chance = Random(seed)
        if mutation is None or chance.random() < BROKEN:
            return bytes(atheris.Mutate(data, max_size))
        return mutation(data, chance)[:max_size]

    guided = {} if mutation is None else {"custom_mutator": mutated}
    command = [sys.argv[0], *options, "-timeout=30", *(args.inputs or folders)]
    atheris.Setup(command, run, **guided)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
