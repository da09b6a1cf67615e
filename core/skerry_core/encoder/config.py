"""`config.json` of an encoder, as far as it decides what is computed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from skerry_core.weights.tensors import WeightsError

_LANES = 16  # widths are multiples of the kernels' vectors

Width = Annotated[int, Meta(ge=_LANES, le=1 << 16, multiple_of=_LANES)]
Heads = Annotated[int, Meta(ge=1, le=1024)]
Layers = Annotated[int, Meta(ge=1, le=1024)]
VocabSize = Annotated[int, Meta(ge=1, le=1 << 24)]
Positions = Annotated[int, Meta(ge=3, le=1 << 17)]


class EncoderConfig(Struct, frozen=True, kw_only=True):
    """An encoder's shape, in BERT's words."""

    model_type: Literal["bert", "roberta", "xlm-roberta", "distilbert"]
    hidden_size: Width
    intermediate_size: Width
    num_attention_heads: Heads
    num_hidden_layers: Layers
    vocab_size: VocabSize
    max_position_embeddings: Positions
    type_vocab_size: Annotated[int, Meta(ge=0, le=16)] = 1
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
        """Return that of a sequence's first token: RoBERTa counts from behind the padding's id."""
        counts_padding = self.model_type in ("roberta", "xlm-roberta")
        return (self.pad_token_id or 0) + 1 if counts_padding else 0

    @property
    def max_tokens(self) -> int:
        """Return those of one sequence, special tokens included."""
        return self.max_position_embeddings - self.first_position

    @property
    def parts(self) -> int:
        """Return how many parts of a sequence the model distinguishes by an embedding of their
        own."""
        return 2 if self.type_vocab_size >= 2 else 1


class _Distilled(Struct, frozen=True, kw_only=True):
    """The same as DistilBERT spells it."""

    model_type: Literal["distilbert"]
    dim: Width = 768
    hidden_dim: Width = 3072
    n_heads: Heads = 12
    n_layers: Layers = 6
    vocab_size: VocabSize = 30522
    max_position_embeddings: Positions = 512
    activation: Literal["gelu"] = "gelu"
    is_decoder: Literal[False] | None = False

    def plain(self) -> EncoderConfig:
        return EncoderConfig(
            model_type="distilbert",
            hidden_size=self.dim,
            intermediate_size=self.hidden_dim,
            num_attention_heads=self.n_heads,
            num_hidden_layers=self.n_layers,
            vocab_size=self.vocab_size,
            max_position_embeddings=self.max_position_embeddings,
            type_vocab_size=0,
        )


def check_config(content: dict[str, Any], path: str) -> EncoderConfig:
    """Return what a config.json says. Raises WeightsError, beginning with `path`."""
    try:
        if content.get("model_type") == "distilbert":
            config = msgspec.convert(content, _Distilled).plain()
        else:
            config = msgspec.convert(content, EncoderConfig)
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
