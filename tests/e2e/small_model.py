"""A small random model in a home, which answers in words of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.core.random_models import random_weights, write_safetensors
from tests.core.runners.runner_suite import CACHE, MODELS
from tests.e2e.command import Skerry
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

NAME = "@cf/me/small"


def write_small_model(folder: Path, *, layers: int = 2) -> Path:
    """Write the model and its tokenizer: a token is a byte."""
    folder.mkdir()
    alike = MODELS["mistral"]
    config = replace(alike, layers=alike.layers[:1] * layers, vocab_size=257, max_context=2048)
    write_safetensors(folder, config, random_weights(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: id_ for id_, byte in enumerate(alphabet)}, []))
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    return folder


def home_with(model: Path, home: Path) -> Skerry:
    """A home that has it as NAME, with kernels that were compiled before."""
    skerry = Skerry(home)
    home.mkdir(mode=0o700)
    CACHE.mkdir(parents=True, exist_ok=True)
    (home / "cache").symlink_to(CACHE)
    done = skerry("models", "add", str(model), "--as", NAME)
    assert done.returncode == 0, done.stderr
    return skerry
