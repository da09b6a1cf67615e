"""`python -m bench.gpu_aot [90]`: what Triton's kernels take of a GPU, without one.

Compiles every kernel for a compute capability, as the runner launches it for Llama-3.1-8B, and
prints registers, bytes that do not fit into them, shared memory, what each thread requests of
memory before it waits for the kernel before, and instructions. Fails when one needs more shared
memory than there is; at 9.0, which the kernels are written for, also when one spills, requests
nothing ahead, or has more instructions than its budget, in all or for each weight: then it would be
slower than when it was last looked at, and only a GPU could say by how much.
"""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console
from rich.table import Table

SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10}  # bytes a program may have, CUDA C programming guide
BUDGETS = {
    "decode": {
        "_attend_split": 1968,
    },
    "decode, windows and norms": {
        "_attend_split": 2496,
    },
    "decode, KV in int8": {
        "_attend_split": 2672,
    },
    "decode, KV in fp8": {
        "_attend_split": 2656,
    },
    "attention": {
        "_rotate_and_store": 288, "_attend_split": 1728,
        "_attend_whole": 1816, "_copy": 216, "_sum": 208,
    },
    "operations": {
        "_norm": 272, "_swiglu": 176, "_product": 808, "_merge_chunks": 400,
    },
    "sampling": {
        "_feed": 112, "find_peaks": 640, "take_peaks": 80, "_fill_bins": 5160, "_sum_bins": 472,
        "_gather": 1408, "_settle": 4240,
    },
    "windows and norms": {
        "_rotate_and_store": 672, "_attend_split": 1824,
        "_attend_whole": 1400, "_copy": 216, "_sum": 208,
    },
    "KV in int8": {
        "_rotate_and_store": 504, "_attend_split": 2256,
        "_attend_whole": 2360, "_copy": 328, "_sum": 208,
    },
    "KV in fp8": {
        "_rotate_and_store": 472, "_attend_split": 2248,
        "_attend_whole": 2360, "_copy": 328, "_sum": 208,
    },
    "few rows": {
        "_product_few": 1064,
    },
    "few rows, 16": {
        "_product_few": 1368,
    },
    "weights in bf12": {
        "_product_12": 1888, "_decode_12": 1296,
    },
    "weights in int8": {
        "_product_narrow": 528, "_widen": 104,
    },
    "weights in int8, 16 rows": {
        "_product_narrow": 656,
    },
    "weights in int8, 64 rows": {
        "_product_narrow": 752,
    },
    "weights in int8, groups of 16": {
        "_product_narrow": 944, "_widen": 136,
    },
    "weights in int8, groups of 16, 64 rows": {
        "_product_narrow": 1088,
    },
    "weights in int4": {
        "_product_narrow": 552, "_widen": 128,
    },
    "weights in int4, 16 rows": {
        "_product_narrow": 712,
    },
    "weights in int4, 64 rows": {
        "_product_narrow": 792,
    },
    "weights in fp8": {
        "_product_narrow": 504, "_narrow_rows": 224, "_product_fp8": 760,
    },
    "weights in fp8, 64 rows": {
        "_product_narrow": 720,
    },
}  # fmt: skip
"""Instructions of a kernel by what it is launched for, as Triton 3.7 compiles it for 9.0. What is
launched in float32 has none: it may spill, since nothing is served so."""


PER_WEIGHT = {
    "weights in bf12": 8.0, "weights in int8": 4.0, "weights in int8, 16 rows": 4.8,
    "weights in fp8": 3.8, "weights in int4": 4.2, "weights in int4, 16 rows": 5.2,
    "weights in int8, groups of 16": 16.4,
}  # fmt: skip
"""Instructions that a product may take for each weight of a decode step, of up to 8 rows unless
said: an H200 issues 10.3 while the bytes of a weight of 12 bits arrive, 7.3 while those of one in
int8 do, with its part of a scale, and 4.3 in int4, with a minimum. Groups of 16 with minima, what
matrices become whose formats are mixed, take twice the time of their bytes. Of bf12, what is
outside of windows, one pair in 3,000, is a loop of its own and not counted."""


BUFFERED = {"_attend_split", "_attend_whole", "_product", "_product_few", "_product_narrow"}
"""Kernels that load the next turn of their loops while they compute this one."""


AHEAD = {"_product_few"}
"""Kernels that have weights fetched before they wait for the kernel before."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_aot", description=__doc__)
    parser.add_argument("capability", nargs="?", type=int, default=90, choices=SHARED_MEMORY)
    parser.add_argument("--only", metavar="VARIANT", nargs="+", help="of these variants")
    parser.add_argument(
        "--margin", type=float, default=1.1, help="times its budget that a kernel may have"
    )
    options = parser.parse_args(arguments)
    os.environ["TRITON_INTERPRET"] = "0"  # before Triton is imported
    from bench.device.compiled_kernels import usages

    table = Table(title=f"compute capability {options.capability / 10:.1f}")
    for column in (
        "variant",
        "kernel",
        "registers",
        "spilled",
        "shared",
        "ahead",
        "instructions",
        "budget",
        "a weight",
    ):
        table.add_column(column, justify="left" if column in ("variant", "kernel") else "right")
    faults = []
    for usage in usages(options.capability, options.only):
        name = f"{usage.kernel} ({usage.variant})"
        is_judged = options.capability == 90 and "float32" not in usage.variant
        budget = BUDGETS.get(usage.variant, {}).get(usage.kernel) if is_judged else None
        if usage.spilled and is_judged:
            faults.append(f"{name} spills {usage.spilled} bytes")
        if usage.shared > SHARED_MEMORY[options.capability]:
            faults.append(f"{name} needs {usage.shared} bytes of shared memory")
        if budget is not None and usage.instructions > options.margin * budget:
            faults.append(f"{name} has {usage.instructions} instructions, its budget is {budget}")
        if is_judged and usage.kernel in BUFFERED and usage.buffers < 2:
            faults.append(f"{name} waits for each load, it has {usage.buffers} buffers")
        if is_judged and usage.kernel in AHEAD and not usage.ahead:
            faults.append(f"{name} requests nothing before it waits for the kernel before")
        per_weight = usage.per_weight if is_judged else None
        most = None if per_weight is None else PER_WEIGHT.get(usage.variant)
        if per_weight is not None and most is not None and per_weight > most:
            faults.append(f"{name} takes {per_weight:.1f} instructions for a weight, not {most}")
        table.add_row(
            usage.variant, usage.kernel, *map(str, (usage.registers, usage.spilled, usage.shared)),
            str(usage.ahead or ""), str(usage.instructions), "" if budget is None else str(budget),
            "" if most is None or per_weight is None else f"{per_weight:.1f}",
        )  # fmt: skip
    console = Console(width=120)
    console.print(table)
    console.print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
