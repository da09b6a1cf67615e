"""Weights and configuration of BERT-like encoders: BERT, RoBERTa and XLM-RoBERTa.

Read from `model.safetensors` and the `config.json` beside it, with Hugging Face's names. Heads for
pooling, classification and masked words are left out; what else is unknown is refused by name.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct

from skerry_core.safetensors_file import read_json_object, read_safetensors
from skerry_core.tensors import Float32, Tensor, WeightsError, check_shapes, dequantize

_MAX_CONFIG_JSON = 1 << 20  # bytes
_LANES = 16  # widths are multiples of the kernels' vectors
_PREFIX = re.compile(r"(bert|roberta)\.")
_NOT_WEIGHTS = re.compile(
    r"((bert|roberta)\.)?(embeddings\.(position_ids|token_type_ids)|pooler\..*)"
    r"|cls\..*|lm_head\..*|classifier\..*"
)

Width = Annotated[int, Meta(ge=_LANES, le=1 << 16, multiple_of=_LANES)]


class EncoderConfig(Struct, frozen=True, kw_only=True):
    """`config.json` of an encoder, as far as it decides what is computed."""

    model_type: Literal["bert", "roberta", "xlm-roberta"]
    hidden_size: Width
    intermediate_size: Width
    num_attention_heads: Annotated[int, Meta(ge=1, le=1024)]
    num_hidden_layers: Annotated[int, Meta(ge=1, le=1024)]
    vocab_size: Annotated[int, Meta(ge=1, le=1 << 24)]
    max_position_embeddings: Annotated[int, Meta(ge=3, le=1 << 17)]
    type_vocab_size: Annotated[int, Meta(ge=1, le=16)] = 1
    layer_norm_eps: Annotated[float, Meta(gt=0.0, lt=1.0)] = 1e-12
    hidden_act: Literal["gelu"] = "gelu"
    position_embedding_type: Literal["absolute"] | None = "absolute"
    is_decoder: Literal[False] | None = False
    pad_token_id: Annotated[int, Meta(ge=0, le=1 << 24)] | None = 0

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def first_position(self) -> int:
        """Of a sequence's first token: RoBERTa counts from behind the padding's id."""
        return 0 if self.model_type == "bert" else (self.pad_token_id or 0) + 1

    @property
    def max_tokens(self) -> int:
        """Of one sequence, special tokens included."""
        return self.max_position_embeddings - self.first_position


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer's weights; matrices are [outputs, inputs], Q above K above V in `qkv`."""

    qkv: Float32
    qkv_bias: Float32
    out: Float32
    out_bias: Float32
    out_gamma: Float32
    out_beta: Float32
    up: Float32
    up_bias: Float32
    down: Float32
    down_bias: Float32
    down_gamma: Float32
    down_beta: Float32


class BertFile:
    """An open encoder: `model.safetensors` in a folder with its `config.json`.

    Opening maps the file and checks that every tensor is there in its shape; a page is read when it
    is first used.
    """

    def __init__(self, config: EncoderConfig, tensors: Mapping[str, Tensor], file: str) -> None:
        self.config = config
        self._tensors = tensors
        self._file = file

    @classmethod
    def open(cls, path: Path) -> BertFile:
        """Raises WeightsError naming the file, and the tensor or field at fault; OSError."""
        config = _read_config(path.with_name("config.json"))
        with path.open("rb") as stream:
            try:
                mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:  # what mmap says to a length of zero
                raise WeightsError(f"{path}: the file is empty") from None
        contents = np.frombuffer(mapped, np.uint8)
        tensors = {
            _PREFIX.sub("", name, count=1): tensor
            for name, tensor in read_safetensors(contents, str(path), ignored=_NOT_WEIGHTS).items()
        }
        check_shapes(tensors, _shapes(config), str(path))
        return cls(config, tensors, str(path))

    def words(self) -> Float32:
        """f32[vocabulary, hidden]: a view of the file where its format allows."""
        tensor = self._tensors["embeddings.word_embeddings.weight"]
        if tensor.format == "F32":
            words: Float32 = tensor.data.view(np.float32).reshape(tensor.shape)
            return words
        return dequantize(tensor)

    def positions(self) -> Float32:
        """f32[positions, hidden], with the embedding of token type 0 added: all tokens have it."""
        positions = self._get("embeddings.position_embeddings.weight")
        positions += self._get("embeddings.token_type_embeddings.weight")[0]
        return positions

    def norm(self) -> Float32:
        """f32[2, hidden]: scale and shift of the embeddings' norm."""
        return np.stack([self._get(f"embeddings.LayerNorm.{kind}") for kind in ("weight", "bias")])

    def layer(self, index: int) -> Layer:
        """One layer's weights in fp32, copied."""
        prefix = f"encoder.layer.{index}."

        def get(name: str) -> Float32:
            return self._get(prefix + name)

        kinds = ("query", "key", "value")
        return Layer(
            qkv=np.concatenate([get(f"attention.self.{kind}.weight") for kind in kinds]),
            qkv_bias=np.concatenate([get(f"attention.self.{kind}.bias") for kind in kinds]),
            out=get("attention.output.dense.weight"),
            out_bias=get("attention.output.dense.bias"),
            out_gamma=get("attention.output.LayerNorm.weight"),
            out_beta=get("attention.output.LayerNorm.bias"),
            up=get("intermediate.dense.weight"),
            up_bias=get("intermediate.dense.bias"),
            down=get("output.dense.weight"),
            down_bias=get("output.dense.bias"),
            down_gamma=get("output.LayerNorm.weight"),
            down_beta=get("output.LayerNorm.bias"),
        )

    def _get(self, name: str) -> Float32:
        return dequantize(self._tensors[name])


def _read_config(path: Path) -> EncoderConfig:
    with path.open("rb") as stream:
        raw = stream.read(_MAX_CONFIG_JSON + 1)
    if len(raw) > _MAX_CONFIG_JSON:
        raise WeightsError(f"{path}: more than {_MAX_CONFIG_JSON} bytes")
    try:
        config = msgspec.convert(read_json_object(raw, str(path)), EncoderConfig)
    except msgspec.ValidationError as error:
        raise WeightsError(f"{path}: {error}") from None
    heads = config.num_attention_heads
    if config.hidden_size % heads or config.head_dim % _LANES:
        raise WeightsError(
            f"{path}: {heads} heads of a hidden size of {config.hidden_size}: a head must have a "
            f"multiple of {_LANES} dimensions"
        )
    if config.max_tokens < 1:
        raise WeightsError(f"{path}: max_position_embeddings leaves room for no token")
    return config


def _shapes(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (config.vocab_size, hidden),
        "embeddings.position_embeddings.weight": (config.max_position_embeddings, hidden),
        "embeddings.token_type_embeddings.weight": (config.type_vocab_size, hidden),
        "embeddings.LayerNorm.weight": (hidden,),
        "embeddings.LayerNorm.bias": (hidden,),
    }
    dense: dict[str, tuple[int, int]] = {
        "attention.self.query": (hidden, hidden),
        "attention.self.key": (hidden, hidden),
        "attention.self.value": (hidden, hidden),
        "attention.output.dense": (hidden, hidden),
        "intermediate.dense": (inner, hidden),
        "output.dense": (hidden, inner),
    }
    for index in range(config.num_hidden_layers):
        prefix = f"encoder.layer.{index}."
        for name, (outputs, inputs) in dense.items():
            shapes[f"{prefix}{name}.weight"] = (outputs, inputs)
            shapes[f"{prefix}{name}.bias"] = (outputs,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{prefix}{name}.weight"] = shapes[f"{prefix}{name}.bias"] = (hidden,)
    return shapes
