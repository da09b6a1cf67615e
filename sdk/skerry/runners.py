"""Kinds of runners by name: what a pool may request, and how a node opens it.

Topologies, the control plane, Terraform and the command read the names; a node imports what a kind
opens, and its libraries, when one is requested. A new kind is an entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

RunnerName = Literal["numba", "torch", "torch-deterministic", "jax", "toy"]


FloatsForm = Literal["keep", "q8_0", "q4_1", "q4_0", "int8", "int4", "fp8", "bf12"]
"""In what a runner keeps matrices that a weight file holds as floats."""
KVForm = Literal["int8", "fp8"]
"""In what a runner keeps KV, if not in the dtype of its activations."""
ParallelAxis = Literal["tensor", "pipeline"]
"""How a model is divided over ranks: within each layer, or into stages of layers."""
MAX_RANKS = 64  # along each axis, and of one model
STAGE_ADDRESS = r"^(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}$"
"""HOST:PORT at which a machine serves stages of a pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerKind:
    opens: str
    """`module:class` of `skerry_core`, whose `from_setup` makes the runner."""
    extra: str  # of this distribution, which brings what the kind needs
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    """What `from_setup` is given besides."""
    floats: tuple[FloatsForm, ...] = ("keep",)
    kv: tuple[KVForm, ...] = ()
    axes: tuple[ParallelAxis, ...] = ()  # along which it divides a model
    opens_divided: str = ""
    """As `opens`, of a model over several ranks; its `serve_rank` runs a rank that is not first,
    and its `survey`, if it has one, says what the model needs and what there is for it."""
    crosses_machines: bool = False
    """Whether its ranks may run on other machines."""
    listens_by_name: bool = False
    """Whether its ranks listen at the address of the machine's name."""

    def lacking(self, sizes: Mapping[ParallelAxis, int]) -> ParallelAxis | None:
        """Return an axis of these sizes along which the kind divides no model."""
        return next((axis for axis in sizes if sizes[axis] > 1 and axis not in self.axes), None)


_TORCH = RunnerKind(
    opens="skerry_core.runners.torch.torch_runner:TorchRunner",
    extra="torch",
    floats=("keep", "int8", "int4", "fp8", "bf12"),
    kv=("int8", "fp8"),
    axes=("tensor", "pipeline"),
    opens_divided="skerry_core.runners.torch.torch_group:TorchGroup",
)

RUNNERS: dict[RunnerName, RunnerKind] = {
    "numba": RunnerKind(
        opens="skerry_core.runners.numba_cpu:NumbaRunner",
        extra="core",
        floats=("keep", "q8_0", "q4_1", "q4_0"),
        axes=("pipeline",),
        opens_divided="skerry_core.runners.pipeline.pipeline_runner:PipelineRunner",
        crosses_machines=True,
    ),
    "torch": _TORCH,
    "torch-deterministic": replace(_TORCH, options={"deterministic": True}),
    "jax": RunnerKind(
        opens="skerry_core.runners.jax.jax_runner:JaxRunner",
        extra="jax",
        axes=("tensor",),
        opens_divided="skerry_core.runners.jax.jax_group:JaxGroup",
        listens_by_name=True,  # gloo does, which JAX has no setting for
    ),
    "toy": RunnerKind(opens="skerry_core.runners.toy:ToyRunner", extra="core"),
}
