"""What is found of JAX's devices where nobody says over how many a model is divided."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import jax
import pytest
from tests.core.random_models import random_weights, write_gguf
from tests.core.ranks.group_suite import group_setup
from tests.core.runners.runner_suite import MODELS

from skerry_core.models.tensor_names import expected_shapes
from skerry_core.ranks import UNDIVIDED, Parallel
from skerry_core.runners.division import divide
from skerry_core.runners.jax.jax_group import JaxGroup
from skerry_core.runners.jax.jax_process import memory_of

GIB = 1 << 30
BLOCK = 2 * 2 * 2 * 64 * 16 * 2  # layers, K and V, heads, tokens, width, bytes: 16 KiB


@dataclass(frozen=True)
class JaxDevice:
    """One of JAX's, and what its allocator says."""

    limit: float | None = None  # GiB; None: nothing
    used: float = 0
    platform: str = "gpu"

    def memory_stats(self) -> dict[str, int] | None:
        if self.limit is None:
            return None
        limit, used = round(self.limit * GIB), round(self.used * GIB)
        return {"bytes_limit": limit, "bytes_in_use": used, "num_allocs": 7}


@pytest.mark.parametrize(
    ("devices", "parallel", "reason"),
    [
        ([JaxDevice(8)] * 2, UNDIVIDED, "0.0 GiB of weights and 4.0 GiB of KV fit one device"),
        ([JaxDevice(5, used=2)] * 2, Parallel(tensor=2), "0.0 GiB of weights and 4.0 GiB of KV do "
         "not fit one device with 3.0 GiB free; 2 share each layer"),
        ([JaxDevice(1.5)] * 3, UNDIVIDED, "0.0 GiB of weights and 4.0 GiB of KV do not fit one "
         "device with 1.5 GiB free, nor any number of the 3 that there are"),  # two heads of KV
        ([JaxDevice(8), JaxDevice()], UNDIVIDED, "0.0 GiB of weights and 4.0 GiB of KV, and no "
         "device says what room it has"),
        ([JaxDevice(platform="cpu")] * 2, UNDIVIDED, "0.0 GiB of weights and 8.0 GiB of KV, and no "
         "device says what room it has"),  # float32 there
    ],
)  # fmt: skip
def test_a_model_is_divided_over_jax_devices(
    devices: list[JaxDevice], parallel: Parallel, reason: str, tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "m.gguf", MODELS["llama"], random_weights(MODELS["llama"]))
    setup = group_setup(
        path, UNDIVIDED, num_blocks=4 * GIB // BLOCK, max_step_tokens=512, max_samples=64
    )
    found = JaxGroup.survey(setup, devices)
    assert found is not None
    division = divide(*found, ("tensor",))
    assert (division.parallel, division.reason) == (parallel, reason)
    is_cpu = devices[0].platform == "cpu"
    shapes = expected_shapes(MODELS["llama"]).values()
    assert found[0].weights == sum(map(prod, shapes)) * (4 if is_cpu else 2)


def test_a_cpu_says_nothing_of_memory(tmp_path: Path) -> None:
    """JAX has one of it here, which divides nothing, and knows no figures of it."""
    setup = group_setup(
        tmp_path / "none", UNDIVIDED, num_blocks=1, max_step_tokens=512, max_samples=64
    )
    assert JaxGroup.survey(setup) is None
    assert JaxGroup.survey(setup, jax.local_devices()) is None
    assert memory_of(jax.local_devices()) == []
