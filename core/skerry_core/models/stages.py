"""Stages of a model that is divided into runs of layers, one behind the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from skerry_core.config import ConfigError, ModelConfig
from skerry_core.models.tensor_names import EMBEDDING, FINAL_NORM, HEAD


@dataclass(frozen=True, slots=True)
class ModelStage:
    """Layers [first, last) of `num_layers`.

    The first stage embeds tokens; the last norms hidden states, computes logits and samples. What
    goes from one to the next are hidden states, f32[tokens, hidden].
    """

    first: int
    last: int
    num_layers: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.last <= self.num_layers:
            raise ConfigError(f"{self.first} to {self.last} of {self.num_layers} layers: no stage")

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.last == self.num_layers

    def config(self, model: ModelConfig) -> ModelConfig:
        """Return what the stage computes, of a model's configuration."""
        return replace(model, layers=model.layers[self.first : self.last])

    def tensors(self, model: ModelConfig, names: Iterable[str]) -> dict[str, str]:
        """Return those of a model's tensors that the stage has, by their names in it: its layers
        count from 0. Tied embeddings are of the first and of the last stage."""
        ends = {EMBEDDING} if self.is_first else set[str]()
        if self.is_last:
            ends |= {FINAL_NORM, EMBEDDING if model.tied_embeddings else HEAD}
        found = {}
        for name in names:
            block, layer, rest = [*name.split(".", 2), "", ""][:3]
            if block == "blk" and self.first <= int(layer) < self.last:
                found[f"blk.{int(layer) - self.first}.{rest}"] = name
            elif name in ends:
                found[name] = name
        return found


def stages_of(cuts: Iterable[int], num_layers: int) -> list[ModelStage]:
    """Return stages that begin at 0 and at each of these layers."""
    starts = [0, *cuts]
    return [
        ModelStage(first, last, num_layers)
        for first, last in zip(starts, [*starts[1:], num_layers], strict=True)
    ]
