"""A small random Llama in fp32 that Skerry serves and `transformers` can load: a numeric oracle."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = "@cf/conformance/random-llama"


def write_reference(folder: Path, tokenizer: Path) -> Path:
    """Weights of a fixed seed in `folder`, with the files of another model's tokenizer."""
    sys.path.insert(0, str(ROOT))  # run.py is a program, and its folder is all that it imports from
    from tests.core.random_models import random_weights, write_safetensors

    from skerry_core.config import LayerConfig, ModelConfig

    config = ModelConfig(
        architecture="llama",
        layers=(LayerConfig(),) * 3,
        hidden_size=128,
        intermediate_size=256,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        vocab_size=49152,
        max_context=2048,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(
        folder,
        config,
        random_weights(config, seed=11),
        architectures=["LlamaForCausalLM"],
        dtype="float32",
        eos_token_id=2,
    )
    for file in tokenizer.iterdir():
        if file.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            shutil.copyfile(file, folder / file.name)
    return folder
