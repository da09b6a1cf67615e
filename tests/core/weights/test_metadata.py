"""Metadata of models: what a file asks for is read, or refused by the name of its key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.core.random_models import random_weights, write_gguf, write_safetensors
from tests.core.weights.test_weights import CONFIG, refused

from skerry_core.models.weight_file import WeightFile


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": "dynamic"}, "rotary scaling 'dynamic' is not supported"),
        ({"llama.rope.scaling.type": "yarn"}, "factor is missing"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count 8 is not supported"),
    ],
)
def test_gguf_metadata_that_asks_for_what_is_not_done(
    tmp_path: Path, metadata: dict[str, int | str], message: str
) -> None:
    path = write_gguf(tmp_path / "m.gguf", CONFIG, random_weights(CONFIG), metadata=metadata)
    assert message in refused(path)


FULL, SLIDING = "full_attention", "sliding_attention"
SMOLLM3 = {"model_type": "smollm3"}
WINDOWED = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 70}


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"model_type": "llama", "sliding_window": 70}, (None, None)),
        ({"model_type": "mistral", "sliding_window": 70}, (70, 70)),
        (WINDOWED | {"use_sliding_window": False}, (None, None)),
        (WINDOWED, (None, None)),
        (WINDOWED | {"max_window_layers": 2}, (None, None)),
        (WINDOWED | {"max_window_layers": 1}, (None, 70)),
        (WINDOWED | {"max_window_layers": 0}, (70, 70)),
        (WINDOWED | {"max_window_layers": 0, "layer_types": [FULL, FULL]}, (None, None)),
        (WINDOWED | {"layer_types": [SLIDING, FULL]}, (70, None)),
        (WINDOWED | {"layer_types": [SLIDING, SLIDING]}, (70, 70)),
    ],
)
def test_which_layers_have_a_sliding_window(
    tmp_path: Path, fields: dict[str, Any], windows: tuple[int | None, ...]
) -> None:
    """Qwen's begins at layer 28 unless told otherwise: the model has two."""
    config = replace(CONFIG, attention_bias=fields["model_type"] == "qwen2")
    path = write_safetensors(tmp_path, config, random_weights(config), **fields)
    assert tuple(layer.window for layer in WeightFile.open(path).config.layers) == windows


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gemma4"}, "model_type 'gemma4' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "gptq"}}, "bits is missing"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rotary scaling 'dynamic'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}}, "mscale 1.0"),
        ({"attention_bias": True}, "attention_bias True is not supported"),
        ({"mlp_bias": True}, "mlp_bias True is not supported"),
        (WINDOWED | {"layer_types": [FULL]}, "layer_types is ['full_attention']"),
        (WINDOWED | {"layer_types": [FULL, "chunked_attention"]}, "layer_types is ['full_att"),
        (WINDOWED | {"layer_types": 7}, "layer_types is 7"),
        (WINDOWED | {"layer_types": [[], {}]}, "layer_types is [[], {}]"),
        (WINDOWED | {"max_window_layers": 1 << 31}, "max_window_layers is 2147483648"),
        (WINDOWED | {"max_window_layers": -1}, "max_window_layers is -1"),
        (SMOLLM3 | {"no_rope_layers": [1]}, "no_rope_layers is [1]"),
        (SMOLLM3 | {"no_rope_layers": [1, []]}, "no_rope_layers is [1, []]"),
        (SMOLLM3 | {"no_rope_layer_interval": 0}, "no_rope_layer_interval is 0"),
        (SMOLLM3 | {"use_sliding_window": True}, "use_sliding_window True is not supported"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_key_value_heads": 3}, "num_heads (4) must be a multiple of num_kv_heads"),
    ],
)
def test_json_that_asks_for_what_is_not_done(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    assert message in refused(write_safetensors(tmp_path, CONFIG, random_weights(CONFIG), **fields))
