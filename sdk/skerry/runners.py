"""Kinds of runners by name: what a pool may request, and how a node opens it.

Topologies, the control plane, Terraform and the command read the names; a node imports what a kind
opens, and its libraries, when one is requested. A new kind is an entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RunnerName = Literal["numba", "torch", "torch-deterministic", "jax", "toy"]


FloatsForm = Literal["keep", "q8_0", "q4_1", "q4_0"]
"""In what a runner keeps matrices that a weight file holds as floats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerKind:
    opens: str
    """`module:class` of `skerry_core`, whose `from_setup` makes the runner."""
    extra: str  # of this distribution, which brings what the kind needs
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    """What `from_setup` is given besides."""
    quantizes: bool = False  # it can keep floats in less


_TORCH = "skerry_core.runners.torch_gpu:TorchRunner"

RUNNERS: dict[RunnerName, RunnerKind] = {
    "numba": RunnerKind(
        opens="skerry_core.runners.numba_cpu:NumbaRunner", extra="core", quantizes=True
    ),
    "torch": RunnerKind(opens=_TORCH, extra="torch"),
    "torch-deterministic": RunnerKind(opens=_TORCH, extra="torch", options={"deterministic": True}),
    "jax": RunnerKind(opens="skerry_core.runners.jax_xla:JaxRunner", extra="jax"),
    "toy": RunnerKind(opens="skerry_core.runners.toy:ToyRunner", extra="core"),
}
