"""One step of a decoder: `run_thread`, the same on every thread. Phases meet at barriers."""

from __future__ import annotations

from skerry_core.kernels.cpu.step_parts import call_phase
from skerry_core.kernels.cpu.step_records import LAYER, PRIVATE_TOKENS
from skerry_core.kernels.simd.aliases import Address, Record
from skerry_core.kernels.simd.memory import array_at
from skerry_core.kernels.simd.numba_math import building_block, kernel
from skerry_core.kernels.simd.targets import Target
from skerry_core.kernels.simd.threads import STEP, await_step, barrier, start_clocks, stop_clocks


@building_block
def _run_phase(phase: Address, target: Target, step: Record, thread: Record, index: int) -> None:
    call_phase(phase, (target, step, thread, index))


@building_block
def _meet(step: Record) -> None:
    barrier(step.sync, step.num_threads)


@building_block
def _run_norm(target: Target, step: Record, thread: Record, which: int, tokens: int) -> None:
    _run_phase(step.norm, target, step, thread, which)
    if tokens > PRIVATE_TOKENS:
        _meet(step)


@building_block
def _finish_branch(target: Target, step: Record, thread: Record, which: int) -> None:
    if step.norms_after:
        _run_phase(step.finish_branch, target, step, thread, which)
        _meet(step)


@building_block
def _run_experts(target: Target, step: Record, thread: Record, layer: int) -> None:
    _run_phase(step.route, target, step, thread, layer)
    _meet(step)
    _run_phase(step.choose_experts, target, step, thread, layer)
    _meet(step)
    _run_phase(step.expert_feed_forward, target, step, thread, layer)
    _meet(step)
    _run_phase(step.expert_down, target, step, thread, layer)
    _meet(step)
    _run_phase(step.add_experts, target, step, thread, layer)
    _meet(step)


@building_block
def _run_layer(target: Target, step: Record, thread: Record, layer: int) -> None:
    _run_norm(target, step, thread, 2 * layer, step.num_tokens)
    _run_phase(step.project, target, step, thread, layer)
    _meet(step)
    _run_phase(step.attend, target, step, thread, layer)
    _meet(step)
    _run_phase(step.add_output, target, step, thread, layer)
    _meet(step)
    _finish_branch(target, step, thread, 2 * layer)
    _run_norm(target, step, thread, 2 * layer + 1, step.num_tokens)
    if array_at(step.layers, (step.num_layers,), LAYER)[layer].has_experts:
        _run_experts(target, step, thread, layer)
    else:
        _run_phase(step.feed_forward, target, step, thread, layer)
        _meet(step)
        _run_phase(step.add_down, target, step, thread, layer)
        _meet(step)
    _finish_branch(target, step, thread, 2 * layer + 1)


@building_block
def _run_step(target: Target, step: Record, thread: Record) -> None:
    _run_phase(step.prepare, target, step, thread, 0)
    _meet(step)
    for layer in range(step.num_layers):
        _run_layer(target, step, thread, layer)
    if step.num_samples:
        _run_norm(target, step, thread, 2 * step.num_layers, step.num_samples)
        _run_phase(step.compute_logits, target, step, thread, 0)
        _meet(step)
        _run_phase(step.sample, target, step, thread, 0)
    _meet(step)


@kernel
def run_thread(target: Target, step: Record, thread: Record) -> int:
    """Run one step on thread 0; on others every step, until they are stopped or park.

    Gives `threads.STEP` to thread 0, and `threads.STOPPED` or `threads.PARKED` to the others.
    """
    while True:
        reason = STEP
        if thread.index != 0:
            reason = await_step(step.sync, thread.index)
        if reason != STEP:
            return reason
        if thread.index == 0:
            start_clocks(step.sync)
        _run_step(target, step, thread)
        if thread.index == 0:
            stop_clocks(step.sync)
            return reason
