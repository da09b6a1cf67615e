"""A request takes its place: what it can use at most, against what may be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skerry.errors import SkerryError
from skerry_edge.gate.admission import Demand, Place

if TYPE_CHECKING:
    from skerry_edge.generation.choices import Call
    from skerry_edge.generation.edge import Edge
    from skerry_regions.models.catalog import ModelSpec


async def enter(
    edge: Edge, model: ModelSpec, call: Call, prompt_tokens: int, output_tokens: int = 0
) -> Place:
    """The request's place, which the caller must `leave`. Raises what `Admission.enter` raises."""
    demand = Demand(
        tenant=call.tenant,
        token=call.token,
        caps=call.caps,
        model=model.id,
        price=model.price,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
    )
    try:
        return await edge.admission.enter(demand, call.headers.update)
    except SkerryError as error:
        edge.metrics.generations_failed.add(1, model.id, error.code)
        raise
