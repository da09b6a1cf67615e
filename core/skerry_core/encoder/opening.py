"""From a folder to the network in it, by the `model_type` of its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skerry_core.encoder import config as encoder_config
from skerry_core.encoder.bert import BertFile
from skerry_core.encoder.bert_network import BertNetwork
from skerry_core.encoder.decoder_network import EMBEDDERS, DecoderNetwork, check_decoder
from skerry_core.encoder.network import Network
from skerry_core.models import weight_file
from skerry_core.weights.files import read_json_file


def open_network(weights: Path) -> Network:
    """Open a `.safetensors` file with its `config.json` beside it, or their folder; map it, and
    check every tensor's shape. Raises WeightsError, ConfigError and OSError."""
    folder = weights if weights.is_dir() else weights.parent
    if read_json_file(folder / "config.json").get("model_type") in EMBEDDERS:
        return DecoderNetwork.open(weights)
    path = weights / "model.safetensors" if weights.is_dir() else weights
    return BertNetwork(BertFile.open(path))


def check_config(content: Mapping[str, Any], path: str) -> None:
    """Look at a config.json before its weights are here. Raises WeightsError and ConfigError."""
    if content.get("model_type") in EMBEDDERS:
        check_decoder(weight_file.check_config(content, path), path)
    else:
        encoder_config.check_config(dict(content), path)
