"""How the threads of one step meet, inside compiled code: claim items, wait at barriers, park.

Waiting spins for a moment, then yields to what else wants the core: pure spinning collapses
next to a busy neighbour. Then it sleeps, so that the system gives the core to a thread of the team
that has none: for naps at a barrier, until it is woken between steps.

`sync` is the address of the words that it takes (`make_sync`), each on a cache line of its own.
"""

from __future__ import annotations

import time
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types

from skerry_core.kernels.simd.aliases import Address, Int64
from skerry_core.kernels.simd.memory import (
    atomic_add,
    atomic_exchange,
    atomic_load,
)
from skerry_core.kernels.simd.numba_math import building_block, intrinsic, kernel

_LINE = 64  # bytes of a cache line
_ARRIVED = 0 * _LINE  # threads at the current barrier
_GENERATION = 1 * _LINE  # barriers passed
_STEP = 2 * _LINE  # number of the step, and in its lowest bits how many threads run it
_STOP = 3 * _LINE  # not 0: threads leave
_TOOK, _RAN = 4 * _LINE, 4 * _LINE + 8  # what thread 0 took for the step, and was running of it
_TIMESPEC = 5 * _LINE  # of thread 0
_FIRST_THREAD = 6  # then two lines per thread: parked, the step it saw last

MAX_THREADS = 62  # of a team: those to wake are bits of an int64
_STEP_THREADS = 64  # more than there can be

_BARRIER_SPINS = 1_000  # about 50 microseconds of `pause`
_BARRIER_YIELDS = 200  # then, about as long on an idle core
_NAP_MICROSECONDS = 50
_IDLE_SPINS = 2_000  # between steps
_IDLE_YIELDS = 2_000  # then, before parking: about a millisecond on an idle machine

STOPPED, PARKED = 0, 1  # why a worker came back from `await_step`
STEP = 2  # ... there is a step to run

_WALL_CLOCK, _OWN_CLOCK = time.CLOCK_MONOTONIC, time.CLOCK_THREAD_CPUTIME_ID
_sched_yield = types.ExternalFunction("sched_yield", types.int32())
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_clock_gettime = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))


def make_sync(num_threads: int) -> Int64:
    """Allocate the words that a team of threads shares, all zero, on cache lines of their own."""
    words = _LINE // 8
    raw = np.zeros((_FIRST_THREAD + 2 * num_threads + 1) * words, np.int64)
    return raw[(-raw.ctypes.data % _LINE) // 8 :]


@intrinsic
def _pause(typing_context: Any) -> Any:
    """Emit the instruction that marks a spin loop for the CPU."""
    is_x86 = llvm.get_process_triple().startswith(("x86_64", "i686"))

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if is_x86:
            kind = ir.FunctionType(ir.VoidType(), [])
            pause = builder.module.globals.get("llvm.x86.sse2.pause") or ir.Function(
                builder.module, kind, "llvm.x86.sse2.pause"
            )
            builder.call(pause, [])
        return context.get_dummy_value()

    return types.void(), codegen


@building_block
def claim(counters: Address, phase: int) -> int:
    """Claim the next item of a phase: 0, 1, 2, …; the caller stops at the number it has.

    `counters` is the address of an i64 per phase, zero before the step.
    """
    return atomic_add(counters + 8 * phase, 1)


@kernel
def barrier(sync: Address, num_threads: int) -> None:
    """Wait until every thread is here; what they wrote before is visible after."""
    if num_threads == 1:
        return
    generation = atomic_load(sync + _GENERATION)
    if atomic_add(sync + _ARRIVED, 1) == num_threads - 1:
        atomic_exchange(sync + _ARRIVED, 0)
        atomic_exchange(sync + _GENERATION, generation + 1)
        return
    waits = 0
    while atomic_load(sync + _GENERATION) == generation:
        waits += 1
        if waits <= _BARRIER_SPINS:
            _pause()
        elif waits <= _BARRIER_SPINS + _BARRIER_YIELDS:
            _sched_yield()
        else:
            _usleep(np.uint32(_NAP_MICROSECONDS))


@kernel
def begin_step(sync: Address, num_threads: int) -> int:
    """Announce a step to the first threads; return a bit mask of those parked, which to wake."""
    number = atomic_load(sync + _STEP) // _STEP_THREADS + 1
    atomic_exchange(sync + _STEP, number * _STEP_THREADS + num_threads)
    to_wake = 0
    for thread in range(1, num_threads):
        if atomic_exchange(sync + (_FIRST_THREAD + 2 * thread) * _LINE, 0) == 1:
            to_wake |= 1 << thread
    return to_wake


@kernel
def stop_threads(sync: Address, num_threads: int) -> int:
    """Do as `begin_step` does, but have the threads leave instead."""
    atomic_exchange(sync + _STOP, 1)
    return begin_step(sync, num_threads)


@kernel
def await_step(sync: Address, thread: int) -> int:
    """Wait for the next step that this thread runs.

    Gives STEP, STOPPED, or PARKED: wait to be woken, then call again.
    """
    parked = sync + (_FIRST_THREAD + 2 * thread) * _LINE
    seen_at = parked + _LINE
    seen = atomic_load(seen_at)
    waits = 0
    while True:
        step = atomic_load(sync + _STEP)
        if step != seen:
            seen = step
            atomic_exchange(seen_at, seen)
            if atomic_load(sync + _STOP):
                return STOPPED
            if thread < step % _STEP_THREADS:
                return STEP
        _pause()
        waits += 1
        if waits > _IDLE_SPINS:
            _sched_yield()
        if waits > _IDLE_SPINS + _IDLE_YIELDS:
            atomic_exchange(parked, 1)
            # A step announced before the flag was up wakes no thread: look once more.
            if atomic_load(sync + _STEP) == seen:
                return PARKED
            # Cleared by the announcer, a wake-up is on its way; it costs one more turn, no harm.
            atomic_exchange(parked, 0)


@building_block
def _nanoseconds(sync: Address, clock: int) -> int:
    _clock_gettime(np.int32(clock), sync + _TIMESPEC)
    return 1_000_000_000 * atomic_load(sync + _TIMESPEC) + atomic_load(sync + _TIMESPEC + 8)


@kernel
def start_clocks(sync: Address) -> None:
    """Note that thread 0 begins a step."""
    atomic_exchange(sync + _TOOK, -_nanoseconds(sync, _WALL_CLOCK))
    atomic_exchange(sync + _RAN, -_nanoseconds(sync, _OWN_CLOCK))


@kernel
def stop_clocks(sync: Address) -> None:
    """Note that thread 0 is done with a step."""
    atomic_add(sync + _TOOK, _nanoseconds(sync, _WALL_CLOCK))
    atomic_add(sync + _RAN, _nanoseconds(sync, _OWN_CLOCK))


def step_seconds(sync: Int64) -> tuple[float, float]:
    """Return how long the last step took, and how long thread 0 had no core, or slept at barriers.

    It does so while another thread has none.
    """
    took, ran = (int(sync[at // 8]) / 1e9 for at in (_TOOK, _RAN))
    return took, took - ran
