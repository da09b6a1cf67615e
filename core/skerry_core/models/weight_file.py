"""Weights and configuration of a model from its file, whatever the file's kind.

`WeightFile` gives tensors under one set of names (`tensor_names`) and in one order of rows: Q and K
in half-split rotary order, as the canonical KV wants them. So a runner needs to know nothing about
the file, and must not permute again.

The family is found first: what it is not is refused before any tensor is looked at. Every tensor
that the configuration calls for is known to be there, in its shape, once a file is open; what a
file has beyond that is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skerry_core.config import ConfigError, ModelConfig
from skerry_core.models.architecture import Architecture
from skerry_core.models.checkpoint_joining import join
from skerry_core.models.metadata import CheckpointMetadata, gguf_metadata
from skerry_core.models.named_tensors import (
    name_tensors,
    with_halves,
    with_norms_plus_one,
    without_zero_biases,
)
from skerry_core.models.quantization import Quantization, read_quantization
from skerry_core.models.registry import DecoderFamily, UnknownFamily, family_of, gguf_family_of
from skerry_core.models.sharding import Shard, sharded
from skerry_core.models.tensor_names import expected_shapes
from skerry_core.weights.files import map_file, read_json_file
from skerry_core.weights.gguf import MAGIC, GGUFContents, read_gguf
from skerry_core.weights.safetensors import read_safetensors
from skerry_core.weights.tensors import Bytes, FileTensor, WeightsError

_MAX_FILES = 1000  # that one model is split over
_OF_BASE = ("embed_tokens.", "layers.", "norm.")  # of a model that was saved without its head
# What rotary embeddings are computed from: the configuration says it too.
_NOT_WEIGHTS = re.compile(
    r"rope_(freqs|factors_long|factors_short)\.weight"
    r"|model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
)


class WeightFile:
    """Open weights: a `.gguf` file, or `.safetensors` files with their `config.json` beside them.

    Tensors are read-only views of the mapped file, so opening costs milliseconds and a page is read
    when it is first used. The mapping lasts as long as any of them does.
    """

    def __init__(
        self, config: ModelConfig, tensors: Mapping[str, FileTensor], *, is_safetensors: bool
    ) -> None:
        self.config = config
        self.tensors = tensors
        self.is_safetensors = is_safetensors

    @classmethod
    def open(
        cls, path: Path, *, is_headless: bool = False, shard: Shard | None = None
    ) -> WeightFile:
        """Map and check a file, or all safetensors files of a folder; with `is_headless` without
        the matrix that makes logits. With a shard, what a rank has of the model.

        Raises WeightsError naming the file, and the tensor if it is one's fault; OSError when it
        cannot be read; ConfigError where a model cannot be divided so.
        """
        files = weight_files(path)
        if files[0].suffix == ".safetensors":
            return cls._open_safetensors(files, shard, is_headless=is_headless)
        contents = map_file(path)
        if contents[:4].tobytes() == MAGIC:
            return cls._open_gguf(contents, str(path), shard)
        raise WeightsError(f"{path}: neither a GGUF nor a .safetensors file")

    @classmethod
    def _open_gguf(cls, contents: Bytes, file: str, shard: Shard | None) -> WeightFile:
        gguf = read_gguf(contents, file)
        name, family = _gguf_family(gguf, file)
        tensors = gguf.tensors()
        config = _config(family, gguf_metadata(name, gguf.metadata, tensors, file))
        tensors = {n: t for n, t in tensors.items() if not _NOT_WEIGHTS.fullmatch(n)}
        architecture = family.architecture
        named = name_tensors(
            tensors, architecture.gguf_tensors, expected_shapes(config), file, keeps_others=True
        )
        if shard is not None:
            config, named = sharded(config, named, shard)
        if architecture.interleaves_pairs:
            named = with_halves(named, config.head_dim)
        return cls(config, named, is_safetensors=False)

    @classmethod
    def _open_safetensors(
        cls, files: Sequence[Path], shard: Shard | None, *, is_headless: bool
    ) -> WeightFile:
        path = files[0].with_name("config.json")
        stated = read_json_file(path)
        config = check_config(stated, str(path))
        if is_headless:
            config = replace(config, tied_embeddings=True)
        quantization = read_quantization(CheckpointMetadata(stated, str(path)))
        family = family_of(config.architecture)
        architecture = family.architecture
        tensors: dict[str, FileTensor] = {}
        for file in files:
            for name, tensor in _safetensors(file, architecture, quantization).items():
                if name in tensors:
                    raise WeightsError(f"{file}: tensor {name!r} is in another file too")
                tensors[name] = tensor
        if config.tied_embeddings:
            tensors.pop("lm_head.weight", None)  # some exporters write the embedding twice
        where = str(files[0] if len(files) == 1 else files[0].parent)
        if quantization is not None:
            tensors = join(tensors, quantization, where)
            tensors = without_zero_biases(tensors, architecture.tensors, expected_shapes(config))
        named = name_tensors(
            tensors, architecture.tensors, expected_shapes(config), where, keeps_others=False
        )
        if shard is not None:
            config, named = sharded(config, named, shard)
        if architecture.norms_plus_one:
            named = with_norms_plus_one(named)
        return cls(config, named, is_safetensors=True)

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(self, *error: object) -> None:
        """Release the file; tensors taken from it before stay valid."""
        self.tensors = {}


def check_config(values: Mapping[str, Any], file: str) -> ModelConfig:
    """Return what a config.json says. Raises WeightsError for what no back end has."""
    metadata = CheckpointMetadata(values, file)
    try:
        family = family_of(metadata.text("model_type"))
    except UnknownFamily as error:
        raise WeightsError(f"{file}: model_type {error}") from None
    read_quantization(metadata)
    section = family.architecture.text_section
    if section is None:
        return _config(family, metadata)
    if not metadata.has(section):
        raise metadata.bad(section)
    return _config(family, metadata.section(section))


def check_gguf_head(head: Bytes, file: str) -> None:
    """Look at a GGUF file's header, of which `head` is the beginning.

    Raises TruncatedFile where the header is longer, WeightsError for what cannot be opened.
    """
    gguf = read_gguf(head, file)
    _gguf_family(gguf, file)
    gguf.check_formats()


def _gguf_family(gguf: GGUFContents, file: str) -> tuple[str, DecoderFamily]:
    """Return what GGUF calls the family, and the family. Raises WeightsError."""
    key = "general.architecture"
    name = CheckpointMetadata(gguf.metadata, file).text(key)
    try:
        return name, gguf_family_of(name)
    except UnknownFamily as error:
        raise WeightsError(f"{file}: {key} {error}") from None


def content_files(path: Path) -> list[Path]:
    """Return all files that decide what a model computes. Raises WeightsError."""
    files = weight_files(path)
    is_described = files[0].suffix == ".safetensors"
    return [*files, files[0].with_name("config.json")] if is_described else files


def weight_files(path: Path) -> list[Path]:
    """Return the file itself, or a folder's safetensors files, by name. Raises WeightsError."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.safetensors"))
    if not 1 <= len(files) <= _MAX_FILES:
        raise WeightsError(f"{path}: {len(files)} .safetensors files, 1 to {_MAX_FILES} are read")
    return files


def _config(family: DecoderFamily, metadata: CheckpointMetadata) -> ModelConfig:
    try:
        return replace(family.architecture.read(metadata), architecture=family.model_type)
    except ConfigError as error:
        raise WeightsError(f"{metadata.file}: {error}") from None


def _safetensors(
    file: Path, architecture: Architecture, quantization: Quantization | None
) -> dict[str, FileTensor]:
    """Return a file's tensors, of a model of text and images those of the text, under the names
    that they have in one of text."""
    tensors = read_safetensors(
        map_file(file), str(file), ignored=_NOT_WEIGHTS, takes_raw=quantization is not None
    )
    named: dict[str, FileTensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(architecture.other_prefixes):
            continue
        prefix = next(filter(name.startswith, architecture.text_prefixes), None)
        if prefix is not None and not name.endswith("lm_head.weight"):
            name = "model." + name.removeprefix(prefix)
        elif prefix is not None:
            name = "lm_head.weight"
        elif name.startswith(_OF_BASE):
            name = f"model.{name}"
        named[name] = tensor
    return named
