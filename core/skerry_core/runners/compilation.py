"""The kernels of a CPU engine, and where a plan keeps the addresses of those that it calls."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import typeof, types

from skerry_core import exact_math as reference_math
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels import rope
from skerry_core.kernels.cpu import (
    attend_step,
    attention,
    layout,
    llama_step,
    matmul,
    matmul_tiles,
    numba_sampling,
    plan,
    rope_tables,
    rowwise,
    sample_step,
    step_parts,
)
from skerry_core.kernels.cpu.attention import ATTEND_BLOCK
from skerry_core.kernels.cpu.matmul import MATMUL
from skerry_core.kernels.cpu.plan import PHASE, Plan
from skerry_core.kernels.cpu.sample_step import SAMPLE_ROW
from skerry_core.kernels.simd import emitter, linking, memory, numba_math, targets, threads
from skerry_core.kernels.simd.linking import compiled_address
from skerry_core.kernels.simd.targets import TARGETS, Target
from skerry_core.runners.kernel_cache import KernelSet
from skerry_core.sampling import GREEDY_TEMPERATURE, MAX_LOGIT, WEIGHT_ONE

_LINKED = {  # field of the plan: kernel and its argument types
    "matmul": (matmul.matmul, MATMUL),
    "attend_block": (attention.attend_block, ATTEND_BLOCK),
    "sample_row": (numba_sampling.sample_row, SAMPLE_ROW),
    "prepare": (llama_step.prepare, PHASE),
    "plan_attention": (attend_step.plan_attention, PHASE),
    "norm": (llama_step.norm, PHASE),
    "project": (llama_step.project, PHASE),
    "attend": (attend_step.attend, PHASE),
    "add_output": (llama_step.add_output, PHASE),
    "feed_forward": (llama_step.feed_forward, PHASE),
    "add_down": (llama_step.add_down, PHASE),
    "compute_logits": (llama_step.compute_logits, PHASE),
    "sample": (sample_step.sample, PHASE),
}
_F64, _F32_TABLE = types.float64[::1], types.float32[:, ::1]
_CALLED = {  # from Python
    "run_thread": (llama_step.run_thread, PHASE[:3]),
    "begin_step": (threads.begin_step, (types.int64, types.int64)),
    "stop_threads": (threads.stop_threads, (types.int64, types.int64)),
    "fill_frequencies": (rope_tables.fill_frequencies, (types.float64, _F64)),
    "fill_tables": (rope_tables.fill_tables, (_F64, _F32_TABLE, _F32_TABLE)),
}


def _kernels(target: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    return {
        name: (kernel, _concrete(argument_types, TARGETS[target]))
        for name, (kernel, argument_types) in (_LINKED | _CALLED).items()
    }


def _concrete(argument_types: tuple[Any, ...], target: Target) -> tuple[Any, ...]:
    return tuple(typeof(target) if t is None else t for t in argument_types)


DECODER_KERNELS = KernelSet(
    name="decoder",
    reference=f"{__name__}:DECODER_KERNELS",
    sources=(
        attend_step,
        attention,
        emitter,
        layout,
        linking,
        llama_step,
        matmul,
        matmul_tiles,
        memory,
        numba_math,
        numba_sampling,
        plan,
        reference_math,
        rope,
        rope_tables,
        rowwise,
        sample_step,
        step_parts,
        targets,
        threads,
    ),
    constants=(BLOCK_SIZE, GREEDY_TEMPERATURE, MAX_LOGIT, WEIGHT_ONE),
    kernels=_kernels,
    processes=2,
)
"""Variants are the names of `targets.TARGETS`."""


@cache
def kernel_version() -> str:
    """Hash of the kernels' sources: the same sources give the same bits."""
    return DECODER_KERNELS.version()


def link(plan: Plan, target: Target) -> None:
    """Note the addresses of loaded kernels in a plan."""
    for name, (kernel, argument_types) in _LINKED.items():
        plan.record[name] = compiled_address(kernel, _concrete(argument_types, target))
