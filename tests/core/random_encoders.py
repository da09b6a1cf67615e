"""Small random encoders, written as Hugging Face has them: safetensors beside `config.json`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

_ROOT = Path(__file__).resolve().parents[2]
KERNELS = Path(os.environ.get("SKERRY_TEST_HOME", _ROOT / ".cache" / "skerry")) / "cache"

Weights = dict[str, NDArray[np.float32]]

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_attention_heads": 3,
    "num_hidden_layers": 2,
    "vocab_size": 101,
    "max_position_embeddings": 70,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "pad_token_id": 0,
}


def random_encoder(config: dict[str, Any], seed: int = 0) -> Weights:
    """Weights under Hugging Face's names, scaled so that states stay sane."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    weights: Weights = {}

    def add(name: str, *shape: int) -> None:
        scale = 1 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.1
        values = scale * rng.normal(size=shape)
        if name.endswith("LayerNorm.weight"):
            values += 1
        weights[name] = values.astype(np.float32)

    def add_norm(name: str) -> None:
        add(f"{name}.weight", hidden)
        add(f"{name}.bias", hidden)

    def add_dense(name: str, outputs: int, inputs: int) -> None:
        add(f"{name}.weight", outputs, inputs)
        add(f"{name}.bias", outputs)

    add("embeddings.word_embeddings.weight", config["vocab_size"], hidden)
    add("embeddings.position_embeddings.weight", config["max_position_embeddings"], hidden)
    add("embeddings.token_type_embeddings.weight", config["type_vocab_size"], hidden)
    add_norm("embeddings.LayerNorm")
    for index in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{index}"
        for kind in ("query", "key", "value"):
            add_dense(f"{layer}.attention.self.{kind}", hidden, hidden)
        add_dense(f"{layer}.attention.output.dense", hidden, hidden)
        add_norm(f"{layer}.attention.output.LayerNorm")
        add_dense(f"{layer}.intermediate.dense", inner, hidden)
        add_dense(f"{layer}.output.dense", hidden, inner)
        add_norm(f"{layer}.output.LayerNorm")
    return weights


def write_encoder(folder: Path, weights: Weights | None = None, **overrides: Any) -> Path:
    """`model.safetensors` and `config.json` in `folder`, which is returned."""
    config = CONFIG | overrides
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights or random_encoder(config), folder / "model.safetensors")
    return folder
