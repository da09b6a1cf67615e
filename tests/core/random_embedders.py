"""Small random decoders that embed, written as sentence-transformers leaves them.

Every parameter is random, norms too. Tokens are words of `WORDS`, a text ends with one of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel

SLIDING, FULL = "sliding_attention", "full_attention"
WINDOW = 20
WORDS = ["<pad>", "<unk>", "<bos>", "<eos>", *(f"w{number}" for number in range(97))]
BOS, EOS = 2, 3
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True)
class Embedder:
    """A kind of published model."""

    config: dict[str, Any]
    pooling: str  # as sentence-transformers calls it
    prompts: dict[str, str]
    dense: tuple[int, ...] = ()  # outputs of each dense layer
    tanh: bool = False  # in the last of them
    template: str = "$A <eos>"
    default_prompt: str | None = None
    others: dict[str, Any] = field(default_factory=dict)  # of config_sentence_transformers.json


_QWEN3_PROMPTS = {"query": f"Instruct: {INSTRUCTION}\nQuery:", "document": ""}
_GEMMA_PROMPTS = {
    "query": "task: search result | query: ",
    "document": "title: none | text: ",
    "Clustering": "task: clustering | query: ",
}
_GEMMA = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 7,
    "query_pre_attn_scalar": 24,
    "sliding_window": WINDOW,
    "rope_parameters": {
        SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
        FULL: {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
    },
}
EMBEDDERS = {
    "Qwen3-Embedding": Embedder({"model_type": "qwen3"}, "lasttoken", _QWEN3_PROMPTS),
    "EmbeddingGemma": Embedder(
        _GEMMA | {"use_bidirectional_attention": True},
        "mean",
        _GEMMA_PROMPTS,
        dense=(160, 64),
        template="<bos> $A <eos>",
    ),
    "Gemma 3, causal, with tanh": Embedder(
        _GEMMA, "cls", {"passage": "p "}, dense=(32,), tanh=True, default_prompt="passage"
    ),
    "Qwen2, windows": Embedder(
        {
            "model_type": "qwen2",
            "use_sliding_window": True,
            "sliding_window": WINDOW,
            "max_window_layers": 2,
        },
        "mean",
        {},
    ),
    "Mistral": Embedder({"model_type": "mistral", "sliding_window": WINDOW}, "lasttoken", {}),
    "Llama, YaRN": Embedder(
        {
            "model_type": "llama",
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        "max",
        {},
    ),
}
_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": len(WORDS), "pad_token_id": 0,
    "max_position_embeddings": 256,
}  # fmt: skip


def write_embedder(folder: Path, name: str) -> Any:
    """Save a random model of a kind, with its tokenizer and modules; return it."""
    kind = EMBEDDERS[name]
    values = {**_SIZES, **kind.config}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(len(name))
    model: Any = AutoModel.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter, values_of in model.named_parameters():
            is_attention = "q_proj" in parameter or "k_proj" in parameter
            is_whole_norm = "norm" in parameter and not kind.config["model_type"].startswith(
                "gemma"
            )
            values_of.normal_(1.0 if is_whole_norm else 0.0, 0.2 if is_attention else 0.1)
    model.save_pretrained(folder)
    _write_tokenizer(folder, kind)
    _write_modules(folder, kind)
    return model.eval()


def _write_tokenizer(folder: Path, kind: Embedder) -> None:
    tokenizer = Tokenizer(
        models.WordLevel({word: id_ for id_, word in enumerate(WORDS)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=kind.template, special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "eos_token": "<eos>",
        "model_max_length": 256,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _write_modules(folder: Path, kind: Embedder) -> None:
    rng = np.random.default_rng(len(kind.pooling))
    modules = [("Transformer", "")]
    for name, module, config in _configs(kind):
        modules.append((module, name))
        own = folder / name
        own.mkdir()
        if module == "Normalize":
            continue
        (own / "config.json").write_text(json.dumps(config))
        if module == "Dense":
            shape = (config["out_features"], config["in_features"])
            weights = {"linear.weight": (rng.normal(size=shape) / shape[1] ** 0.5)}
            if config["bias"]:
                weights["linear.bias"] = rng.normal(size=shape[0])
            floats = {key: each.astype(np.float32) for key, each in weights.items()}
            save_file(floats, own / "model.safetensors")
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{module}"}
        for i, (module, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 200, "do_lower_case": False})
    )
    stated = {"prompts": kind.prompts, "default_prompt_name": kind.default_prompt, **kind.others}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(stated))


def _configs(kind: Embedder) -> list[tuple[str, str, dict[str, Any]]]:
    """Folder, kind and configuration of each module behind the transformer."""
    legacy = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    key = f"pooling_mode_{legacy.get(kind.pooling, kind.pooling)}"
    pooling = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": False, key: True}
    found: list[tuple[str, str, dict[str, Any]]] = [("1_Pooling", "Pooling", pooling)]
    inputs = 64
    for number, outputs in enumerate(kind.dense, 2):
        activation = "activation.Tanh" if kind.tanh else "linear.Identity"
        config = {
            "in_features": inputs,
            "out_features": outputs,
            "bias": kind.tanh,
            "activation_function": f"torch.nn.modules.{activation}",
        }
        found.append((f"{number}_Dense", "Dense", config))
        inputs = outputs
    return [*found, (f"{len(found) + 1}_Normalize", "Normalize", {})]


def pooled(folder: Path, name: str, states: torch.Tensor) -> torch.Tensor:
    """What the modules in a folder make of one text's states, by Torch: f32[width]."""
    kind = EMBEDDERS[name]
    vector = {
        "mean": lambda: states.mean(0),
        "cls": lambda: states[0],
        "max": lambda: states.max(0).values,
        "lasttoken": lambda: states[-1],
    }[kind.pooling]()
    for number in range(2, 2 + len(kind.dense)):
        weights = load_file(folder / f"{number}_Dense" / "model.safetensors")
        layer = {key: torch.from_numpy(each) for key, each in weights.items()}
        vector = torch.nn.functional.linear(
            vector, layer["linear.weight"], layer.get("linear.bias")
        )
        vector = vector.tanh() if kind.tanh else vector
    return torch.nn.functional.normalize(vector, dim=0)
