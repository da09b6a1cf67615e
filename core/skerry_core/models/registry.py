"""The families of decoders that can be opened. A family's file is imported when a model needs
it."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from skerry_core.models.architecture import Architecture

FAMILIES: dict[str, str | None] = {
    # `model_type` of config.json, which is the file in `architectures`: GGUF's name, if it has one
    "llama": "llama",
    "mistral": None,  # is a Llama there
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "smollm3": "smollm3",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gemma3": None,  # with images; a file for itself there
    "phi3": "phi3",
    "granite": "granite",
    "olmo2": "olmo2",
    "mixtral": None,  # is a Llama with experts there
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
}


class UnknownFamily(ValueError):
    """No family has this name; the message names those that there are."""


class DecoderFamily(NamedTuple):
    model_type: str
    architecture: Architecture


def family_of(model_type: str) -> DecoderFamily:
    """Return the family by `model_type` of config.json. Raises UnknownFamily."""
    if model_type not in FAMILIES:
        raise UnknownFamily(f"{model_type!r} is not supported, only {tuple(FAMILIES)}")
    module = import_module(f"skerry_core.models.architectures.{model_type}")
    architecture: Architecture = module.ARCHITECTURE
    return DecoderFamily(model_type, architecture)


def gguf_family_of(name: str) -> DecoderFamily:
    """Return the family by GGUF's `general.architecture`. Raises UnknownFamily."""
    by_name = {theirs: ours for ours, theirs in FAMILIES.items() if theirs is not None}
    if name not in by_name:
        raise UnknownFamily(f"{name!r} is not supported, only {tuple(by_name)}")
    return family_of(by_name[name])
