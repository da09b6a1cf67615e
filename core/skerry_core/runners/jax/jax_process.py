"""What a process has one of for all that runs on JAX there: devices, threads, programs on disk, and
a place in JAX's distributed runtime.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Protocol

import jax
import llvmlite.binding as llvm
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from skerry_core.config import ConfigError
from skerry_core.kernels.jax.weights import MODEL_AXIS
from skerry_core.runner import RunnerSizes
from skerry_core.runners.device_sizes import CardMemory

_THREADS = "PJRT_NPROC"  # read by XLA when its CPU client is made
_HOST_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")
_MEETING_SECONDS = 120


class MemoryOwner(Protocol):
    """What a survey looks at of one of JAX's devices."""

    @property
    def platform(self) -> str: ...
    def memory_stats(self) -> Mapping[str, int] | None:
        """Return figures of XLA's allocator; None of a host."""
        ...


def mesh_of(num_devices: int) -> Mesh:
    """Return the first of JAX's devices as a mesh: of several processes the first one of each.
    Raises ConfigError when there are too few."""
    devices = jax.devices()
    if (count := jax.process_count()) > 1:
        devices = [next(d for d in devices if d.process_index == i) for i in range(count)]
    if not 1 <= num_devices <= len(devices):
        raise ConfigError(f"num_devices must be 1 to {len(devices)} here, got {num_devices}")
    return Mesh(np.array(devices[:num_devices]), (MODEL_AXIS,))


def devices_here() -> int:
    """Return how many devices JAX has in this process, or will have, without starting it."""
    if found := _HOST_DEVICES.findall(os.environ.get("XLA_FLAGS", "")):
        return int(found[-1])
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return max(1, len([each for each in visible.split(",") if each]))
    return max(1, len(list(Path("/dev").glob("nvidia[0-9]*"))))


def memory_of(devices: Iterable[MemoryOwner]) -> list[CardMemory]:
    """Return what XLA's allocator has of devices now: less than all their memory, unless
    `XLA_PYTHON_CLIENT_MEM_FRACTION` says so. None at all where one does not say it."""
    found = list[CardMemory]()
    for device in devices:
        stats = device.memory_stats() or {}
        if "bytes_limit" not in stats or "bytes_in_use" not in stats:
            return []
        limit = stats["bytes_limit"]
        found.append(CardMemory(total=limit, free=limit - stats["bytes_in_use"]))
    return found


def least_of_all(sizes: RunnerSizes) -> RunnerSizes:
    """Return the least sizes of all processes, which are called together."""
    if jax.process_count() == 1:
        return sizes
    each = np.asarray(multihost_utils.process_allgather(np.array(astuple(sizes), np.int32)))
    blocks, tokens, samples = (int(least) for least in each.min(axis=0))
    return RunnerSizes(num_blocks=blocks, max_step_tokens=tokens, max_samples=samples)


def is_cpu() -> bool:
    return jax.devices()[0].platform == "cpu"


def use_threads(count: int) -> None:
    """Let a CPU's steps use so many cores: the first call of a process holds."""
    os.environ.setdefault(_THREADS, str(count))


def keep_on_disk(cache_dir: Path) -> None:
    """Keep compiled programs between starts: the last call of a process holds."""
    jax.config.update("jax_compilation_cache_dir", str(cache_dir / "jax" / _cpu()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def processor() -> list[str]:
    """Return what decides which code XLA makes, beside its version."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return ["cpu", _cpu(), f"{os.environ.get(_THREADS)} threads"]
    return [device.platform, device.device_kind]


def meet(place: str, rank: int, num_ranks: int) -> None:
    """Join the distributed runtime, which the first rank serves at a socket's path; wait for all.

    Raises ConfigError where JAX runs in this process already, and RuntimeError where one does not
    come.
    """
    address = f"unix:{place}"
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    # One that is lost must not end the others: the engine says what is to be done.
    jax.config.update("jax_enable_recoverability", True)
    try:
        jax.distributed.initialize(
            address, num_processes=num_ranks, process_id=rank, coordinator_bind_address=address,
            initialization_timeout=_MEETING_SECONDS,
        )  # fmt: skip
    except RuntimeError as error:
        if "before any JAX" in str(error) or "only be called once" in str(error):
            raise ConfigError(
                "a process runs one model over several JAX processes, and nothing on JAX before it"
            ) from None
        raise


def _cpu() -> str:
    """Name this kind of CPU: code that XLA makes for it may not run on another."""
    kind = (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    return hashlib.blake2b(repr(kind).encode(), digest_size=8).hexdigest()
