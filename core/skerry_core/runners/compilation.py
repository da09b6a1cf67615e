"""The kernels of a CPU engine, and where a step finds the addresses of those that it calls."""

from __future__ import annotations

from functools import cache
from typing import Any

from numba import typeof, types

from skerry_core import exact_math
from skerry_core.config import BLOCK_SIZE
from skerry_core.kernels import activations, cpu, rope, simd
from skerry_core.kernels import matmul as products
from skerry_core.kernels.cpu import (
    attend_phase,
    attention_tiles,
    decoder_phases,
    expert_phases,
    project_phase,
    rope_tables,
)
from skerry_core.kernels.cpu.attention import ATTEND_BLOCK, attend_block
from skerry_core.kernels.cpu.decoder_step import run_thread
from skerry_core.kernels.cpu.numba_sampling import sample_row
from skerry_core.kernels.cpu.sample_step import SAMPLE_ROW, sample
from skerry_core.kernels.cpu.step_memory import StepMemory
from skerry_core.kernels.cpu.step_records import PHASE
from skerry_core.kernels.matmul.matmul import MATMUL, matmul
from skerry_core.kernels.simd import threads
from skerry_core.kernels.simd.linking import compiled_address
from skerry_core.kernels.simd.targets import TARGETS, Target
from skerry_core.runners.kernel_cache import KernelSet
from skerry_core.sampling import GREEDY_TEMPERATURE, MAX_LOGIT, WEIGHT_ONE
from skerry_core.weights import codebooks

_LINKED = {  # field of the step: kernel and its argument types
    "matmul": (matmul, MATMUL),
    "attend_block": (attend_block, ATTEND_BLOCK),
    "sample_row": (sample_row, SAMPLE_ROW),
    "prepare": (decoder_phases.prepare, PHASE),
    "divide_attention": (attention_tiles.divide_attention, PHASE),
    "norm": (decoder_phases.norm, PHASE),
    "project": (project_phase.project, PHASE),
    "attend": (attend_phase.attend, PHASE),
    "add_output": (decoder_phases.add_output, PHASE),
    "finish_branch": (decoder_phases.finish_branch, PHASE),
    "feed_forward": (decoder_phases.feed_forward, PHASE),
    "add_down": (decoder_phases.add_down, PHASE),
    "route": (expert_phases.route, PHASE),
    "choose_experts": (expert_phases.choose_experts, PHASE),
    "expert_feed_forward": (expert_phases.expert_feed_forward, PHASE),
    "expert_down": (expert_phases.expert_down, PHASE),
    "add_experts": (expert_phases.add_experts, PHASE),
    "compute_logits": (decoder_phases.compute_logits, PHASE),
    "sample": (sample, PHASE),
}
_F64, _F32_TABLE = types.float64[::1], types.float32[:, ::1]
_CALLED = {  # from Python
    "run_thread": (run_thread, PHASE[:3]),
    "begin_step": (threads.begin_step, (types.int64, types.int64)),
    "stop_threads": (threads.stop_threads, (types.int64, types.int64)),
    "fill_frequencies": (rope_tables.fill_frequencies, (types.float64, _F64)),
    "fill_tables": (rope_tables.fill_tables, (_F64, types.float64, _F32_TABLE, _F32_TABLE)),
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
    sources=(cpu, products, simd, exact_math, rope, activations, codebooks),
    constants=(BLOCK_SIZE, GREEDY_TEMPERATURE, MAX_LOGIT, WEIGHT_ONE),
    kernels=_kernels,
    processes=2,
)
"""Variants are the names of `targets.TARGETS`."""


@cache
def kernel_version() -> str:
    """Hash of the kernels' sources: the same sources give the same bits."""
    return DECODER_KERNELS.version()


def link(step: StepMemory, target: Target) -> None:
    """Note the addresses of loaded kernels in a step's record."""
    for name, (kernel, argument_types) in _LINKED.items():
        step.record[name] = compiled_address(kernel, _concrete(argument_types, target))
