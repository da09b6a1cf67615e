"""Small random models of transformers, of every family, saved as it saves them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tests.core.runners.family_table import Family
from tests.core.runners.runner_suite import VOCAB, random_tokens
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from skerry_core.batch import Float32
from skerry_core.config import ModelConfig
from skerry_core.models.weight_file import WeightFile, check_config

TOKENS = random_tokens(150)


@dataclass
class Saved:
    """A model of transformers, the folder that it was saved to, and its logits of TOKENS."""

    family: Family
    folder: Path
    logits: Float32
    config: ModelConfig


def stated(family: Family) -> PretrainedConfig:
    """What a family's config.json says."""
    sizes = {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB,
        "max_position_embeddings": 512, "pad_token_id": 0,
    }  # fmt: skip
    return AutoConfig.for_model(family.model_type, **{**sizes, **family.fields})


def config_of(family: Family) -> ModelConfig:
    """What of it is computed."""
    return check_config(json.loads(stated(family).to_json_string()), "config.json")


def save(family: Family, folder: Path) -> Saved:
    """Make a small random model of a family with transformers, and save it."""
    torch.manual_seed(family.seed)
    model: Any = AutoModelForCausalLM.from_config(
        stated(family), dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_attention = "q_proj" in name or "k_proj" in name or "qkv_proj" in name
            is_attention |= "sinks" in name or "gate.weight" in name or "router" in name
            is_whole_norm = "norm" in name and not family.model_type.startswith("gemma")
            parameter.normal_(1.0 if is_whole_norm else 0.0, 0.2 if is_attention else 0.1)
    _leave_an_expert_out(model)
    model.save_pretrained(folder)
    with torch.inference_mode():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    with WeightFile.open(folder) as file:
        return Saved(family, folder, logits, file.config)


def _leave_an_expert_out(model: Any) -> None:
    """Have the last expert of the first layer chosen by no token: by its bias, or because it
    dislikes what all tokens have in common, their first dimension."""
    for name, parameter in model.named_parameters():
        if re.search(r"layers\.0\..*router\.bias$", name):
            parameter.data[-1] = -100.0
        elif re.search(r"layers\.0\.mlp\.gate\.weight$", name):
            model.get_input_embeddings().weight.data[:, 0] = 1.0
            parameter.data[:, 0] = parameter.data[-1] = 0.0
            parameter.data[-1, 0] = -5.0
