"""Compiling a CPU engine's kernels, and keeping them on disk between starts.

numba's cache does not see edits in modules that a kernel imports, so the directory is named after
everything that decides the code: the sources of all kernels, numba and LLVM, and the CPU.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba import typeof

from skerry_core import config, sampling
from skerry_core.kernels import (
    attention,
    emitter,
    layout,
    linking,
    llama_step,
    matmul,
    memory,
    numba_math,
    numba_sampling,
    plan,
    reference_math,
    rope,
    rope_tables,
    rowwise,
    sample_step,
    targets,
    threads,
)
from skerry_core.kernels.attention import ATTEND_BLOCK
from skerry_core.kernels.linking import compiled_address
from skerry_core.kernels.matmul import MATMUL
from skerry_core.kernels.plan import PHASE, Plan
from skerry_core.kernels.sample_step import SAMPLE_ROW
from skerry_core.kernels.targets import NUMBA_CONFIG, Target
from skerry_core.runners.base import Progress

_KERNELS = {  # field of the plan: kernel and its argument types
    "matmul": (matmul.matmul, MATMUL),
    "attend_block": (attention.attend_block, ATTEND_BLOCK),
    "sample_row": (numba_sampling.sample_row, SAMPLE_ROW),
    "sample": (sample_step.sample, PHASE),
    **{
        name: (getattr(llama_step, name), PHASE)
        for name in (
            "prepare",
            "norm",
            "project",
            "attend",
            "add_output",
            "feed_forward",
            "add_down",
            "compute_logits",
        )
    },
}
_ENTRY_POINTS = (
    llama_step.run_thread,
    threads.begin_step,
    threads.stop_threads,
    rope_tables.fill_frequencies,
    rope_tables.fill_tables,
)
_SOURCES = (  # every module whose code or constants end up in a kernel
    attention,
    config,
    emitter,
    layout,
    linking,
    llama_step,
    matmul,
    memory,
    numba_math,
    numba_sampling,
    plan,
    reference_math,
    rope,
    rope_tables,
    rowwise,
    sample_step,
    sampling,
    targets,
    threads,
)


@cache
def kernel_version() -> str:
    """Hash of the kernels' sources: the same sources give the same bits."""
    digest = hashlib.blake2b(digest_size=8)
    for module in _SOURCES:
        digest.update(
            module.__name__.encode() + b"\0" + Path(str(module.__file__)).read_bytes() + b"\0"
        )
    return digest.hexdigest()


def keep_on_disk(cache_dir: Path) -> Path:
    """Have numba keep what it compiles in the folder of this code and this CPU; returns it.

    To be called before anything is compiled. Numba's cache directory is global to the process.
    """
    folder = cache_dir / "numba" / _code_key()
    NUMBA_CONFIG.CACHE_DIR = str(folder)
    for kernel in {id(k): k for k, _ in _KERNELS.values()}.values():
        kernel.enable_caching()
    for kernel in _ENTRY_POINTS:
        kernel.enable_caching()
    return folder


def compile_kernels(plan: Plan, target: Target, folder: Path, progress: Progress) -> None:
    """Compile every kernel, or load it from the folder, and note its address in the plan."""
    finished = folder / "finished"
    what = "loading kernels" if finished.exists() else "compiling kernels for this CPU, once"
    for done, (name, (kernel, types)) in enumerate(_KERNELS.items()):
        progress(what, done / len(_KERNELS))
        concrete = tuple(typeof(target) if t is None else t for t in types)
        plan.record[name] = compiled_address(kernel, concrete)
    entry_types = tuple(typeof(target) if t is None else t for t in PHASE[:3])
    llama_step.run_thread.compile(entry_types)
    finished.touch()
    progress(what, 1.0)


def _code_key() -> str:
    cpu: tuple[Any, ...] = (
        NUMBA_CONFIG.CPU_NAME or llvm.get_host_cpu_name(),
        NUMBA_CONFIG.CPU_FEATURES or llvm.get_host_cpu_features().flatten(),
    )
    versions = (kernel_version(), numba.__version__, llvmlite.__version__)
    return hashlib.blake2b(repr((versions, cpu)).encode(), digest_size=8).hexdigest()
