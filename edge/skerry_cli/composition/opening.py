"""Checks that the engine can open a model, in milliseconds, before it is added or served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from skerry_cli.home.errors import raised_as
from skerry_cli.home.parts import Installation
from skerry_core.config import ConfigError, ModelConfig
from skerry_core.models import weight_file
from skerry_core.models.weight_file import WeightFile
from skerry_core.weights.tensors import TruncatedFile, WeightsError
from skerry_regions.models.catalog import Task
from skerry_regions.models.local_model import ENCODERS
from skerry_regions.models.problems import UnsupportedModel, left_out_by
from skerry_regions.models.pulling import Checks

if TYPE_CHECKING:  # an encoder's modules import numba: they are, where there is an encoder
    from skerry_core.encoder.network import Network


def openable(installed: Installation) -> Installation:
    """Leave out the models that the engine cannot open. Raises `CannotStart` when none remains."""
    left_out = []
    for model in installed.models:
        try:
            check_opens(model.files.weights, model.spec.task)
        except UnsupportedModel as error:
            left_out.append(left_out_by(model.spec.id, error))
    return installed.without(left_out)


def check_opens(weights: Path, task: Task) -> None:
    """Open the configuration, then look at every tensor's format and shape.

    `weights` is a file, or the folder of a safetensors model. Raises `UnsupportedModel`.
    """
    if task == "text-generation":
        decoder_config(weights)
    else:
        encoder_network(weights)


def check_config(values: dict[str, Any], task: Task) -> None:
    """Look at a config.json before its weights are here. Raises `UnsupportedModel`."""
    with raised_as(UnsupportedModel, WeightsError, ConfigError):
        if values.get("model_type") in ENCODERS or task == "text-embeddings":
            from skerry_core.encoder import opening

            opening.check_config(values, "config.json")
        elif task != "text-generation":
            raise UnsupportedModel(
                f"config.json: model_type {values.get('model_type')!r} does not classify here, "
                f"only {ENCODERS} do"
            )
        else:
            weight_file.check_config(values, "config.json")


def check_head(head: bytes) -> bool:
    """Look at the beginning of a GGUF file; False: its header is longer. Raises
    `UnsupportedModel`."""
    try:
        weight_file.check_gguf_head(np.frombuffer(head, np.uint8), "header")
    except TruncatedFile:
        return False
    except (WeightsError, ConfigError) as error:
        raise UnsupportedModel(str(error)) from None
    return True


CHECKS = Checks(config=check_config, head=check_head, opens=check_opens)


def decoder_config(weights: Path) -> ModelConfig:
    """Return what a model that makes text computes. Raises `UnsupportedModel`."""
    unreadable = raised_as(UnsupportedModel, WeightsError, ConfigError, OSError)
    with unreadable, WeightFile.open(weights) as file:
        if file.config.is_bidirectional:
            raise UnsupportedModel(
                f"{weights}: its tokens see those behind them, so it embeds; how, is read from "
                "sentence-transformers' modules.json, which is not there"
            )
        return file.config


def encoder_network(weights: Path) -> Network:
    """Open a model that reads texts, with the dense layers behind it. Raises `UnsupportedModel`."""
    from skerry_core.encoder.opening import open_network
    from skerry_core.encoder.projections import open_projections

    with raised_as(UnsupportedModel, WeightsError, ConfigError, OSError):
        network = open_network(weights)
        open_projections(weights if weights.is_dir() else weights.parent, network.hidden_size)
    return network
